// RMSNorm over rows of D floats, one warp a row; kernels/rms.py is the definition.
#pragma once
#include "float4.cuh"
#include "reduce.cuh"

__device__ inline float inverse_root(float squares, int D, float eps) { return 1.0f / sqrtf(warp_sum(squares) / D + eps); }

// A lane keeps the 16-byte pieces lane, lane + 32, ... of its row in registers: PIECES of them at most.
// b, sum, copy and another may be null.
template <int PIECES>
__device__ inline void add_norm_pieces(
    const float4* a, const float4* b, const float4* weight, float eps, float4* sum, float4* n, float* rstd, int D,
    float4* copy, float4* another) {
    const int lane = threadIdx.x % 32, width = D / 4;
    float4 s[PIECES];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const int c = lane + 32 * i;
        s[i] = c < width ? a[c] : zeros();
        if (b && c < width) s[i] = s[i] + b[c];
        squares += dot(s[i], s[i]);
    }
    const float r = inverse_root(squares, D, eps);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const int c = lane + 32 * i;
        if (c >= width) break;
        if (sum) sum[c] = s[i];
        const float4 value = s[i] * r * weight[c];
        n[c] = value;
        if (copy) copy[c] = value;
        if (another) another[c] = value;
    }
    if (lane == 0) *rstd = r;
}

__device__ inline void add_norm_floats(
    const float* a, const float* b, const float* weight, float eps, float* sum, float* n, float* rstd, int D, float* copy,
    float* another) {
    const int lane = threadIdx.x % 32;
    float squares = 0.0f;
    for (int c = lane; c < D; c += 32) {
        const float s = b ? a[c] + b[c] : a[c];
        squares += s * s;
    }
    const float r = inverse_root(squares, D, eps);
    for (int c = lane; c < D; c += 32) {
        const float s = b ? a[c] + b[c] : a[c];
        if (sum) sum[c] = s;
        const float value = s * r * weight[c];
        n[c] = value;
        if (copy) copy[c] = value;
        if (another) another[c] = value;
    }
    if (lane == 0) *rstd = r;
}

// One row: sum = a + b, n = sum * rstd * weight; without b it is a, and without `sum` it is not kept. `copy` and `another`
// get n, too. Rows of whole 16-byte pieces stay in registers; they are read once, which is all that counts.
__device__ inline void add_norm(
    const float* a, const float* b, const float* weight, float eps, float* sum, float* n, float* rstd, int D,
    float* copy = nullptr, float* another = nullptr) {
    constexpr int PIECES = 4;
    if (D % 4 == 0 && D <= 128 * PIECES)
        add_norm_pieces<PIECES>((const float4*)a, (const float4*)b, (const float4*)weight, eps, (float4*)sum, (float4*)n,
                                rstd, D, (float4*)copy, (float4*)another);
    else
        add_norm_floats(a, b, weight, eps, sum, n, rstd, D, copy, another);
}
