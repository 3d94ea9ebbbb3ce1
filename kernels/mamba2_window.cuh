// The seed and small profiles' shape of a Mamba-2 mixer: windows of 32 rows, states and heads of 64; 4 or 8 heads (rows
// of whole 16-byte pieces). A block a window. kernels/mixer_parts.py is the definition.
#pragma once
#include "async.cuh"
#include "float4.cuh"
#include "mamba2.cuh"
#include "mma.cuh"

constexpr int ROWS = 32, WIDE = 64;
// Row strides in shared memory, modulo the 32 banks: 8 for rows of which a warp reads four at eight columns each, or pairs
// of columns; 4 for rows of which it reads eight at four columns each.
constexpr int CB = WIDE + 8;  // of B and C, B behind C
constexpr int GS = ROWS + 4;  // of the scores

__device__ inline float4 fma4(float4 a, float4 b, float4 sum) {
    return make_float4(a.x * b.x + sum.x, a.y * b.y + sum.y, a.z * b.z + sum.z, a.w * b.w + sum.w);
}
__device__ inline float4 at4(const float* p) { return *(const float4*)p; }
__device__ inline float2 at2(const float* p) { return *(const float2*)p; }

// SiLU as a factor (mma.cuh), for nothing more.
template <bool EXACT>
__device__ inline float silu_factor(float u) {
    constexpr float one = EXACT ? 1.0f : 1.0f / UNCUT;
    return u * reciprocal_fast(one + one * exp2_fast(u * -1.44269504f));
}
template <bool EXACT>
__device__ inline float4 silu_factor4(float4 u) {
    return make_float4(silu_factor<EXACT>(u.x), silu_factor<EXACT>(u.y), silu_factor<EXACT>(u.z), silu_factor<EXACT>(u.w));
}

// Asks for n rows of `lines` 128-byte lines each, `stride` floats apart, to be on their way into L2.
__device__ inline void prefetch_rows(const float* p, int stride, int lines, int n) {
    const int lane = threadIdx.x % 32;  // a line each
    for (int row = threadIdx.x / 32; row < n && lane < lines; row += blockDim.x / 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + (i64)row * stride + lane * 32));
}

// One warp: convolution and SiLU of 32 channels in place, as factors, a lane 8 rows of 4 channels. The lanes have read all
// rows before one is written. x, weight, bias: of the first channel.
template <bool EXACT>
__device__ inline void conv_group(float* x, int stride, const float* weight, const float* bias, int CH) {
    const int lane = threadIdx.x % 32, ch = lane % 8 * 4, first = lane / 8 * AHEAD;
    float* to = x + first * stride + ch;
    float4 row[AHEAD + 3];
#pragma unroll
    for (int i = 0; i < AHEAD + 3; ++i) row[i] = first || i >= 3 ? at4(to + (i - 3) * stride) : zeros();
    const float4 w0 = at4(weight + ch), w1 = at4(weight + CH + ch), w2 = at4(weight + 2 * CH + ch),
                 w3 = at4(weight + 3 * CH + ch), shift = at4(bias + ch);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        const float4* u = row + i;
        *(float4*)(to + i * stride) =
            silu_factor4<EXACT>(fma4(w0, u[0], fma4(w1, u[1], fma4(w2, u[2], fma4(w3, u[3], shift)))));
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
__device__ inline float decay_between(float2 t, float2 k) { return exp2_fast((t.x - k.x) + (t.y - k.y)); }

// The masked matrix M[t, k] = score L dt_k for k <= t, else 0, with `skip` on its diagonal; dt and skip as factors are.
// `block` and `s` are t / 8 and k / 8, known where the code is unrolled; to, from: prefixes at t and k.
__device__ inline float masked(
    int block, int s, int t, int k, float score, float2 to, float2 from, float dt, float skip) {
    if (block < s) return 0.0f;
    const float v = score * decay_between(to, from) * dt;
    return block > s || t > k ? v : t == k ? v + skip : 0.0f;
}

// score[t, k] = C_t . B_k, row stride GS, in the blocks of 16 rows by 8 columns that reach the diagonal: one a warp.
template <bool EXACT>
__device__ inline void scores(const float* c, const float* b, float* score) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    for (int task = threadIdx.x / 32; task < 6; task += blockDim.x / 32) {
        const int t = task < 2 ? g : 16 + g, k = (task < 2 ? task : task - 2) * 8;
        const float *ct = c + t * CB + 2 * q, *bk = b + (k + g) * CB + 2 * q;
        float sum[2][4] = {};  // two chains wait for each other half as long as one
#pragma unroll
        for (int n = 0; n < WIDE; n += 8) {  // columns n + 2 q, n + 2 q + 1 in the places of q, q + 4
            const float2 c0 = at2(ct + n), c1 = at2(ct + 8 * CB + n), bn = at2(bk + n);
            multiply_add(sum[n / 8 % 2], FactorA<EXACT>(c0.x, c1.x, c0.y, c1.y), FactorB<EXACT>(bn.x, bn.y));
        }
        float* to = score + t * GS + k + 2 * q;
        *(float2*)to = make_float2(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]);
        *(float2*)(to + 8 * GS) = make_float2(sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
    }
}
