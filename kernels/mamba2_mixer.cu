// `mamba2_mixer` is for the profiles' shape (mamba2_window.cuh), `mamba2_mixer_any` for all others. At 1024 windows of
// the seed size the first moves 219 MB (about 50 us) and computes 0.6 G multiply-adds, of which the mask spares a third:
// everything of a window stays in shared memory and registers, two blocks a multiprocessor overlap loads and sums.
#include "mamba2_any.cuh"
#include "mamba2_window.cuh"

#define ARGS                                                                                                  \
    const float *__restrict__ zcbxdt, const float *__restrict__ conv_weight, const float *__restrict__ conv_bias, \
        const float *__restrict__ dt_bias, const float *__restrict__ a_log, const float *__restrict__ d_skip, \
        const float *__restrict__ norm_weight, const float eps, float *__restrict__ y, const int R, const int K, \
        const int E, const int CH, const int HD, const int DI

constexpr int GS = ROWS + 8;  // row stride of the scores: 4 rows by 8 columns are in 32 banks
constexpr int MS = ROWS + 4;  // of the masked matrix's chunks

// A warp a head. A lane keeps 8 rows (r + 4 i) by 8 columns (4 c .., 32 + 4 c ..) of Y.
extern "C" __global__ void __launch_bounds__(256, 2) mamba2_mixer(ARGS) {
    extern __shared__ float4 aligned[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp, r = lane / 8, c = lane % 8;
    float* x = (float*)aligned;              // [32, DI]
    float* cs = x + ROWS * DI;               // [32, CB]
    float* bs = cs + ROWS * CB;              // [32, CB]
    float* score = bs + ROWS * CB;           // [32, GS]
    float* m = score + ROWS * GS + h * 8 * MS;  // [8, MS] of each head
    float* dt = score + ROWS * GS + HD * 8 * MS + h * ROWS;             // [HD, 32]
    float2* prefix = (float2*)(score + ROWS * GS + HD * (8 * MS + ROWS)) + h * ROWS;  // [HD, 32]
    float* squares = score + ROWS * GS + HD * (8 * MS + 3 * ROWS);      // [HD, 32]

    const float* window = zcbxdt + (i64)blockIdx.x * ROWS * E;
    const Channels channels = {cs, bs, x, DI};
    load_window(window + DI, E, channels, CH);
    const float raw = window[(i64)lane * E + DI + CH + h] + dt_bias[h];
    prefetch_rows(window, E, DI / 32, ROWS);  // the gate, needed at the end
    conv_window<0>(conv_weight, conv_bias, channels, CH);
    decay_prefix(raw, a_log[h], dt, prefix);
    __syncthreads();
    scores<GS>(cs, bs, score);
    __syncthreads();

    const float* xh = x + h * WIDE + 4 * c;
    float2 to[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = prefix[r + 4 * i];
    float acc[8][8] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {  // 8 columns of the masked matrix at a time; rows before them are zero
        __syncwarp();
        {
            const int k = 8 * q + c;
            const float2 from = prefix[k];
            float v[8] = {};
#pragma unroll
            for (int i = 2 * q; i < 8; ++i) {
                const int t = r + 4 * i;
                v[i] = t >= k ? score[t * GS + k] * decay_between(to[i], from) * dt[k] : 0.0f;
            }
            if (q < 2) *(float4*)(m + c * MS + r * 8) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4*)(m + c * MS + r * 8 + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        __syncwarp();
#pragma unroll 4
        for (int k = 0; k < 8; ++k) {
            const float4 x0 = at4(xh + (8 * q + k) * DI), x1 = at4(xh + (8 * q + k) * DI + 32);
            const float4 m0 = q < 2 ? at4(m + k * MS + r * 8) : zero4(), m1 = at4(m + k * MS + r * 8 + 4);
            const float mi[8] = {m0.x, m0.y, m0.z, m0.w, m1.x, m1.y, m1.z, m1.w};
            const float xj[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
            for (int i = 2 * q; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] += mi[i] * xj[j];
        }
    }

    // D skip, gate, and the rows' sums of squares over this head.
    const float skip = d_skip[h];
    const float* z = window + h * WIDE + 4 * c;
    float mine = 0.0f;  // of row r + 4 c
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int t = r + 4 * i;
        float sum = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 gate = silu4(at4(z + (i64)t * E + 32 * half)), xt = at4(xh + t * DI + 32 * half);
            float* a = acc[i] + 4 * half;
            a[0] = (a[0] + skip * xt.x) * gate.x; a[1] = (a[1] + skip * xt.y) * gate.y;
            a[2] = (a[2] + skip * xt.z) * gate.z; a[3] = (a[3] + skip * xt.w) * gate.w;
            sum += a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3];
        }
        for (int o = 1; o < 8; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
        if (c == i) mine = sum;
    }
    squares[h * ROWS + lane] = mine;
    __syncthreads();
    float total = 0.0f;
    for (int head = 0; head < HD; ++head) total += squares[head * ROWS + lane];
    const float rstd = 1.0f / sqrtf(total / DI + eps);

    const float4 w0 = at4(norm_weight + h * WIDE + 4 * c), w1 = at4(norm_weight + h * WIDE + 4 * c + 32);
    float* out = y + (i64)blockIdx.x * ROWS * DI + h * WIDE + 4 * c;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float s = __shfl_sync(~0u, rstd, r * 8 + i), *a = acc[i];
        float* to_row = out + (r + 4 * i) * DI;
        *(float4*)to_row = make_float4(a[0] * s * w0.x, a[1] * s * w0.y, a[2] * s * w0.z, a[3] * s * w0.w);
        *(float4*)(to_row + 32) = make_float4(a[4] * s * w1.x, a[5] * s * w1.y, a[6] * s * w1.z, a[7] * s * w1.w);
    }
}

extern "C" __global__ void __launch_bounds__(256) mamba2_mixer_any(ARGS) {
    extern __shared__ double shared[];
    const int N = (CH - DI) / 2, P = DI / HD;
    const AnyWindow s(shared, K, N, P);
    const float *window = zcbxdt + (i64)blockIdx.x * K * E, *u = window + DI;
    float* out = y + (i64)blockIdx.x * K * DI;  // before the norm until the end
    any_scores(s, u, E, conv_weight, conv_bias, CH, N, K);
    for (int h = 0; h < HD; ++h) {
        any_head(s, u, E, conv_weight, conv_bias, dt_bias, a_log, h, CH, N, P, K);
        for (int i = threadIdx.x; i < K * P; i += blockDim.x) {
            const int t = i / P, p = i % P;
            const float z = window[(i64)t * E + h * P + p];
            out[(i64)t * DI + h * P + p] = any_output(s, t, p, d_skip[h], P, K) * z * sigmoid(z);
        }
        __syncthreads();
    }
    for (int t = threadIdx.x / 32; t < K; t += blockDim.x / 32) {
        float* row = out + (i64)t * DI;
        float squares = 0.0f;
        for (int i = threadIdx.x % 32; i < DI; i += 32) squares += row[i] * row[i];
        const float rstd = 1.0f / sqrtf(warp_sum(squares) / DI + eps);
        for (int i = threadIdx.x % 32; i < DI; i += 32) row[i] *= rstd * norm_weight[i];
    }
}
