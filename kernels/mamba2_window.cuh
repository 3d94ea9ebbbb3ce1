// The seed and small profiles' shape of a Mamba-2 mixer: windows of 32 rows, states and heads of 64; any number of heads
// up to 8. One block a window. kernels/mixer_parts.py is the definition.
#pragma once
#include "mamba2.cuh"

constexpr int ROWS = 32, WIDE = 64;
constexpr int CB = WIDE + 4;  // row stride of B and C in shared memory: 8 rows at one column are in 32 banks

__device__ inline float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
__device__ inline float4 fma4(float4 a, float4 b, float4 sum) {
    return make_float4(a.x * b.x + sum.x, a.y * b.y + sum.y, a.z * b.z + sum.z, a.w * b.w + sum.w);
}
__device__ inline float4 silu4(float4 u) {
    return make_float4(u.x * sigmoid(u.x), u.y * sigmoid(u.y), u.z * sigmoid(u.z), u.w * sigmoid(u.w));
}
__device__ inline float dot4(float4 a, float4 b, float sum) {
    return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ inline float4 at4(const float* p) { return *(const float4*)p; }

// Asks for n rows of `lines` 128-byte lines each, `stride` floats apart, to be on their way into L2.
__device__ inline void prefetch_rows(const float* p, int stride, int lines, int n) {
    for (int i = threadIdx.x; i < n * lines; i += blockDim.x)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + (i64)(i / lines) * stride + i % lines * 32));
}

// Convolution and SiLU of a window: u, its channels C, B, x at row 0 -> c, b [32, CB], x [32, XS]. A lane computes 8 rows
// of 4 channels.
__device__ inline void conv_window(
    const float* u, int E, const float* weight, const float* bias, float* c, float* b, float* x, int XS, int CH) {
    const int lane = threadIdx.x % 32, first = lane / 8 * AHEAD;
    for (int group = threadIdx.x / 32; group < CH / 32; group += blockDim.x / 32) {
        const int ch = group * 32 + lane % 8 * 4;
        float4 row[AHEAD + 3];
#pragma unroll
        for (int i = 0; i < AHEAD + 3; ++i) {
            const int k = first - 3 + i;
            row[i] = k >= 0 ? at4(u + (i64)k * E + ch) : zero4();
        }
        const float4 w0 = at4(weight + ch), w1 = at4(weight + CH + ch), w2 = at4(weight + 2 * CH + ch),
                     w3 = at4(weight + 3 * CH + ch), shift = at4(bias + ch);
        float* to = ch < WIDE ? c + ch : ch < 2 * WIDE ? b + ch - WIDE : x + ch - 2 * WIDE;
        const int stride = ch < 2 * WIDE ? CB : XS;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const float4 pre = fma4(w0, row[i], fma4(w1, row[i + 1], fma4(w2, row[i + 2], fma4(w3, row[i + 3], shift))));
            *(float4*)(to + (first + i) * stride) = silu4(pre);
        }
    }
}

// One warp, a lane a row: dt [32] and prefix [32], sums of log2 decay up to each row as two floats. A difference of two
// prefixes is then as exact as a sum over the rows between them: nothing cancels that float32 would miss.
__device__ inline void decay_prefix(float raw, float a_log, float* dt, float2* prefix) {
    const int lane = threadIdx.x % 32;
    const float step = softplus(raw);
    double sum = -1.4426950408889634 * (double)expf(a_log) * (double)step;
    for (int o = 1; o < 32; o *= 2) {
        const double before = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += before;
    }
    const float high = (float)sum;
    dt[lane] = step;
    prefix[lane] = make_float2(high, (float)(sum - high));
}

// exp(sum_{k < j <= t} a_j) for k <= t.
__device__ inline float decay_between(float2 t, float2 k) { return exp2f((t.x - k.x) + (t.y - k.y)); }

// score[t, k] = C_t . B_k, row stride GS. A thread computes a 4 x 4 tile over a quarter of the states.
template <int GS>
__device__ inline void scores(const float* c, const float* b, float* score) {
    for (int task = threadIdx.x; task < 256; task += blockDim.x) {
        const int part = task % 4, k = task / 4 % 8 * 4, t = task / 32 * 4;
        float sum[4][4] = {};
#pragma unroll
        for (int n = part * 4; n < WIDE; n += 16) {
            float4 ct[4], bk[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) { ct[i] = at4(c + (t + i) * CB + n); bk[i] = at4(b + (k + i) * CB + n); }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] = dot4(ct[i], bk[j], sum[i][j]);
        }
        // Add the quarters so that each thread of the four is left with one row of the tile.
        const bool low = part & 2, odd = part & 1;
        float two[2][4], one[4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float send = low ? sum[i][j] : sum[i + 2][j];
                two[i][j] = (low ? sum[i + 2][j] : sum[i][j]) + __shfl_xor_sync(~0u, send, 2);
            }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float send = odd ? two[0][j] : two[1][j];
            one[j] = (odd ? two[1][j] : two[0][j]) + __shfl_xor_sync(~0u, send, 1);
        }
        *(float4*)(score + (t + part) * GS + k) = make_float4(one[0], one[1], one[2], one[3]);
    }
}
