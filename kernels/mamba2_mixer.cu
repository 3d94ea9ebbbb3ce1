// `mamba2_mixer` and `_exact` (mma.cuh) are for the profiles' shape (mamba2_window.cuh), `_any` for all others. At 1024 windows
// of the seed size the first moves 219 MB (about 50 us) and computes 0.6 G multiply-adds, of which the mask spares a third:
// everything of a window stays in shared memory and registers, two blocks a multiprocessor overlap loads and sums.
#include "mamba2_any.cuh"
#include "mamba2_window.cuh"

#define ARGS                                                                                                  \
    const float *__restrict__ zcbxdt, const float *__restrict__ conv_weight, const float *__restrict__ conv_bias, \
        const float *__restrict__ dt_bias, const float *__restrict__ a_log, const float *__restrict__ d_skip, \
        const float *__restrict__ norm_weight, const float eps, const int tf32, float *__restrict__ y, const int R, \
        const int K, const int E, const int CH, const int HD, const int DI, const int Y
#define GIVEN zcbxdt, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, tf32, y, R, K, E, CH, HD, DI, Y

// Where a window's channels C, B, x lie in shared memory: c, b [32, CB], x [32, XS].
struct Channels {
    float *c, *b, *x;
    int XS;
    __device__ float* at(int ch) const { return ch < WIDE ? c + ch : ch < 2 * WIDE ? b + ch - WIDE : x + ch - 2 * WIDE; }
    __device__ int stride(int ch) const { return ch < 2 * WIDE ? CB : XS; }
};

constexpr int ROUNDS = 3;  // groups of 32 channels of a warp, at most: 4 + 2 HD of them for HD warps, HD 4 or 8

// Puts the copies of u, the window's channels at row 0, on their way: ROUNDS groups of copies.
__device__ inline void load_window(const float* u, int E, const Channels& to, int CH) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1  // code that does not fit the instruction cache costs more
    for (int round = 0; round < ROUNDS; ++round) {
        const int group = threadIdx.x / 32 + round * (blockDim.x / 32), ch = group * 32 + lane % 8 * 4;
        if (group < CH / 32)
            for (int k = lane / 8; k < ROWS; k += 4) copy_async(to.at(ch) + k * to.stride(ch), u + (i64)k * E + ch);
        copies_end();
    }
}

// Their convolution and SiLU in place, as factors, by the warp that loaded them.
template <bool EXACT>
__device__ inline void conv_window(const float* weight, const float* bias, const Channels& in, int CH) {
#pragma unroll 1  // code that does not fit the instruction cache costs more
    for (int round = 0; round < ROUNDS; ++round) {
        if (round == 0) copies_wait<ROUNDS - 1>();
        if (round == 1) copies_wait<ROUNDS - 2>();
        if (round == 2) copies_wait<ROUNDS - 3>();
        const int group = threadIdx.x / 32 + round * (blockDim.x / 32), ch = group * 32;
        if (group >= CH / 32) break;
        __syncwarp();
        conv_group<EXACT>(in.at(ch), in.stride(ch), weight + ch, bias + ch, CH);
    }
}

// A warp a head. A lane keeps rows g + 8 i by columns 8 j + 2 q, 8 j + 2 q + 1 of Y (mma.cuh).
template <bool EXACT>
__device__ inline void mixer(ARGS) {
    extern __shared__ float4 aligned[];
    const int lane = threadIdx.x % 32, h = threadIdx.x / 32, g = lane / 4, q = lane % 4, XS = DI + 8;
    float* x = (float*)aligned;     // [32, XS]
    float* cs = x + ROWS * XS;      // [32, CB]
    float* bs = cs + ROWS * CB;     // [32, CB]
    float* score = bs + ROWS * CB;  // [32, GS]
    float* vectors = score + ROWS * GS;
    float* dt = vectors + h * ROWS;                              // [HD, 32]
    float2* prefix = (float2*)(vectors + HD * ROWS) + h * ROWS;  // [HD, 32]
    float* squares = vectors + 3 * HD * ROWS;                    // [HD, 32]

    const float* window = zcbxdt + (i64)blockIdx.x * ROWS * E;
    const Channels channels = {cs, bs, x, XS};
    load_window(window + DI, E, channels, CH);
    const float raw = window[(i64)lane * E + DI + CH + h] + dt_bias[h], skip = factor<EXACT>(d_skip[h]);
    prefetch_rows(window, E, DI / 32, ROWS);  // the gate, needed at the end
    conv_window<EXACT>(conv_weight, conv_bias, channels, CH);
    decay_prefix(raw, a_log[h], dt, prefix);
    __syncthreads();
    scores<EXACT>(cs, bs, score);
    __syncthreads();

    // Y = M x, where M has D on its diagonal.
    float2 to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = prefix[g + 8 * i];
    float y_of[2][8][4] = {};  // rows g + 16 i and g + 16 i + 8
#pragma unroll
    for (int s = 0; s < 4; ++s) {  // 8 columns of M at a time; rows before them are zero
        const int k0 = 8 * s + q, k1 = k0 + 4;
        const float2 from0 = prefix[k0], from1 = prefix[k1];
        const float dt0 = factor<EXACT>(dt[k0]), dt1 = factor<EXACT>(dt[k1]);
        FactorA<EXACT> m[2];
#pragma unroll
        for (int i = s / 2; i < 2; ++i) {
            float v[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int block = 2 * i + half, t = g + 8 * block;
                v[half][0] = masked(block, s, t, k0, score[t * GS + k0], to[block], from0, dt0, skip);
                v[half][1] = masked(block, s, t, k1, score[t * GS + k1], to[block], from1, dt1, skip);
            }
            m[i] = FactorA<EXACT>(v[0][0], v[1][0], v[0][1], v[1][1]);
        }
        const float* xs = x + k0 * XS + h * WIDE + g;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const FactorB<EXACT> b(xs[8 * j], xs[4 * XS + 8 * j]);
#pragma unroll
            for (int i = s / 2; i < 2; ++i) multiply_add(y_of[i][j], m[i], b);
        }
    }

    // The gate, and the rows' sums of squares over this head.
    const float* z = window + h * WIDE + 2 * q;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = g + 8 * i, at = i % 2 * 2;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 zj = at2(z + (i64)t * E + 8 * j);
            float &a = y_of[i / 2][j][at], &b = y_of[i / 2][j][at + 1];
            a *= zj.x * sigmoid(zj.x);
            b *= zj.y * sigmoid(zj.y);
            sum += a * a + b * b;
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (q == 0) squares[h * ROWS + t] = sum;
    }
    __syncthreads();
    float total = 0.0f;  // of row `lane`
    for (int head = 0; head < HD; ++head) total += squares[head * ROWS + lane];
    const float rstd = 1.0f / sqrtf(total / DI + eps);

    float* out = y + (i64)blockIdx.x * ROWS * Y + h * WIDE + 2 * q;
    const float* weight = norm_weight + h * WIDE + 2 * q;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = g + 8 * i, at = i % 2 * 2;
        const float s = __shfl_sync(~0u, rstd, t);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 w = at2(weight + 8 * j);
            const float* a = y_of[i / 2][j] + at;
            *(float2*)(out + t * Y + 8 * j) = make_float2(a[0] * s * w.x, a[1] * s * w.y);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) mamba2_mixer(ARGS) { mixer<false>(GIVEN); }
extern "C" __global__ void __launch_bounds__(256, 2) mamba2_mixer_exact(ARGS) { mixer<true>(GIVEN); }

extern "C" __global__ void __launch_bounds__(256) mamba2_mixer_any(ARGS) {
    extern __shared__ double shared[];
    const int N = (CH - DI) / 2, P = DI / HD;
    const AnyWindow s(shared, K, N, P);
    const float *window = zcbxdt + (i64)blockIdx.x * K * E, *u = window + DI;
    float* out = y + (i64)blockIdx.x * K * Y;  // before the norm until the end
    any_scores(s, u, E, conv_weight, conv_bias, CH, N, K);
    for (int h = 0; h < HD; ++h) {
        any_head(s, u, E, conv_weight, conv_bias, dt_bias, a_log, h, CH, N, P, K);
        for (int i = threadIdx.x; i < K * P; i += blockDim.x) {
            const int t = i / P, p = i % P;
            const float z = window[(i64)t * E + h * P + p];
            out[(i64)t * Y + h * P + p] = any_output(s, t, p, d_skip[h], P, K) * z * sigmoid(z);
        }
        __syncthreads();
    }
    for (int t = threadIdx.x / 32; t < K; t += blockDim.x / 32) {
        float* row = out + (i64)t * Y;
        float squares = 0.0f;
        for (int i = threadIdx.x % 32; i < DI; i += 32) squares += row[i] * row[i];
        const float rstd = 1.0f / sqrtf(warp_sum(squares) / DI + eps);
        for (int i = threadIdx.x % 32; i < DI; i += 32) row[i] *= rstd * norm_weight[i];
    }
}
