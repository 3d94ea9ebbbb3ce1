// The seed and small profiles' shape of a Mamba-2 mixer: windows of 32 rows, states and heads of 64; 4 or 8 heads (rows
// of whole 16-byte pieces). One block a window. kernels/mixer_parts.py is the definition.
#pragma once
#include "mamba2.cuh"
#include "mma.cuh"

constexpr int ROWS = 32, WIDE = 64;
// Row strides in shared memory, modulo the 32 banks: 8 for rows of which a warp reads four at eight columns each, or pairs
// of columns; 4 for rows of which it reads eight at four columns each.
constexpr int CB = WIDE + 8;  // of B and C

__device__ inline float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
__device__ inline float4 fma4(float4 a, float4 b, float4 sum) {
    return make_float4(a.x * b.x + sum.x, a.y * b.y + sum.y, a.z * b.z + sum.z, a.w * b.w + sum.w);
}
__device__ inline float4 silu4(float4 u) {
    return make_float4(u.x * sigmoid(u.x), u.y * sigmoid(u.y), u.z * sigmoid(u.z), u.w * sigmoid(u.w));
}
__device__ inline float4 at4(const float* p) { return *(const float4*)p; }
__device__ inline float2 at2(const float* p) { return *(const float2*)p; }

// Asks for n rows of `lines` 128-byte lines each, `stride` floats apart, to be on their way into L2.
__device__ inline void prefetch_rows(const float* p, int stride, int lines, int n) {
    const int lane = threadIdx.x % 32;  // a line each
    for (int row = threadIdx.x / 32; row < n && lane < lines; row += blockDim.x / 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + (i64)row * stride + lane * 32));
}

// 16 bytes from global to shared memory, seen by the calling thread after copies_wait.
__device__ inline void copy_async(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
// Ends a group of copies.
__device__ inline void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the `pending` youngest groups are still on their way.
template <int pending>
__device__ inline void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

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

// Convolution and SiLU in place, by the warp that loaded the channels; LATER groups of copies came after load_window. A
// lane computes 8 rows of 4 channels; a warp's lanes have read all rows of a group before one is written.
template <int LATER>
__device__ inline void conv_window(const float* weight, const float* bias, const Channels& in, int CH) {
    const int lane = threadIdx.x % 32, first = lane / 8 * AHEAD;
#pragma unroll 1  // code that does not fit the instruction cache costs more
    for (int round = 0; round < ROUNDS; ++round) {
        if (round == 0) copies_wait<ROUNDS - 1 + LATER>();
        if (round == 1) copies_wait<ROUNDS - 2 + LATER>();
        if (round == 2) copies_wait<ROUNDS - 3 + LATER>();
        const int group = threadIdx.x / 32 + round * (blockDim.x / 32), ch = group * 32 + lane % 8 * 4;
        if (group >= CH / 32) break;
        __syncwarp();
        float* to = in.at(ch);
        const int stride = in.stride(ch);
        float4 row[AHEAD + 3];
#pragma unroll
        for (int i = 0; i < AHEAD + 3; ++i) row[i] = first + i >= 3 ? at4(to + (first + i - 3) * stride) : zero4();
        __syncwarp();
        const float4 w0 = at4(weight + ch), w1 = at4(weight + CH + ch), w2 = at4(weight + 2 * CH + ch),
                     w3 = at4(weight + 3 * CH + ch), shift = at4(bias + ch);
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

// The masked matrix M[t, k] = score L dt_k for k <= t, else 0, with `skip` on its diagonal. `block` and `s` are t / 8 and
// k / 8, known where the code is unrolled; row: the scores of t; to, from: prefixes at t and k.
__device__ inline float masked(
    int block, int s, int t, int k, const float* row, float2 to, float2 from, float dt, float skip) {
    if (block < s) return 0.0f;
    const float v = row[k] * decay_between(to, from) * dt;
    return block > s || t > k ? v : t == k ? v + skip : 0.0f;
}

// score[t, k] = C_t . B_k, row stride GS, in the blocks of 16 rows by 8 columns that reach the diagonal: one a warp.
template <int GS>
__device__ inline void scores(const float* c, const float* b, float* score) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    for (int task = threadIdx.x / 32; task < 6; task += blockDim.x / 32) {
        const int t = task < 2 ? g : 16 + g, k = (task < 2 ? task : task - 2) * 8;
        const float *ct = c + t * CB + 2 * q, *bk = b + (k + g) * CB + 2 * q;
        float sum[2][4] = {};  // two chains wait for each other half as long as one
#pragma unroll
        for (int n = 0; n < WIDE; n += 8) {  // columns n + 2 q, n + 2 q + 1 in the places of q, q + 4
            const float2 c0 = at2(ct + n), c1 = at2(ct + 8 * CB + n), bn = at2(bk + n);
            multiply_add(sum[n / 8 % 2], FactorA(c0.x, c1.x, c0.y, c1.y), FactorB(bn.x, bn.y));
        }
        float* to = score + t * GS + k + 2 * q;
        *(float2*)to = make_float2(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]);
        *(float2*)(to + 8 * GS) = make_float2(sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
    }
}

// Backward of convolution and SiLU at one channel and AHEAD rows from `first` on: writes du there and u du to `products`,
// which lies like dvalue, and adds to nothing: terms [5] are these rows' parts of the gradients of the taps and the bias.
__device__ inline void conv_backward_segment(
    const float* u, int stride, int first, const Taps<1>& taps, const float* dvalue, int dstride, float* du,
    float* products, float (&terms)[5]) {
    float in[AHEAD + 6], d[AHEAD + 3];
#pragma unroll
    for (int i = 0; i < AHEAD + 6; ++i) {
        const int k = first - 3 + i;
        in[i] = k >= 0 && k < ROWS ? u[(i64)k * stride] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 5; ++j) terms[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < AHEAD + 3; ++i) {
        float pre = taps.bias.v[0];
#pragma unroll
        for (int j = 3; j >= 0; --j) pre += taps.w[j].v[0] * in[i + j];
        const float gate = sigmoid(pre), value = pre * gate;
        d[i] = first + i < ROWS ? silu_slope(value, gate) * dvalue[(first + i) * dstride] : 0.0f;
        if (i >= AHEAD) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) terms[j] += d[i] * in[i + j];
        terms[4] += d[i];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += taps.w[3 - j].v[0] * d[i + j];
        du[(i64)(first + i) * stride] = sum;
        products[(first + i) * dstride] = sum * in[i + 3];
    }
}
