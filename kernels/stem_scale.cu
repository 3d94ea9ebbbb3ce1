// At X = 64 on the tensor cores (stem_rows.cuh), 16 rows a warp.
#include "stem_rows.cuh"

extern "C" __global__ void __launch_bounds__(256, 2) stem_scale(
    const float* __restrict__ x,     // [R, K, Y], of which the last X columns are read
    const float* __restrict__ gram,  // [X, X]
    const int width,
    const float eps,
    float* __restrict__ xs,          // [R, K, X]
    const int R, const int K, const int Y, const int X) {
    __shared__ uint4 factors[PAIRS * 32];
    gram_factors(gram, WIDE, factors);
    __syncthreads();
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, warps = blockDim.x / 32;
    const i64 rows = (i64)R * K, step = (i64)gridDim.x * warps * TILE;
    for (i64 first = ((i64)blockIdx.x * warps + threadIdx.x / 32) * TILE; first < rows; first += step) {
        float4 v[2][PIECES];  // rows g and g + 8
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i64 row = first + g + 8 * i;
            const float4* from = (const float4*)(x + row * Y + (Y - WIDE)) + q;
#pragma unroll
            for (int b = 0; b < PIECES; ++b)
                v[i][b] = row < rows ? from[4 * b] : zeros();
        }
        float scale[2];
        row_scales(v, factors, width, eps, scale);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i64 row = first + g + 8 * i;
            float4* to = (float4*)(xs + row * WIDE) + q;
#pragma unroll
            for (int b = 0; b < PIECES; ++b)
                if (row < rows) to[4 * b] = v[i][b] * scale[i];
        }
    }
}

// Any width, a warp a row: correct rather than fast.
extern "C" __global__ void stem_scale_any(
    const float* __restrict__ x,     // [R, K, Y]
    const float* __restrict__ gram,  // [X, X]
    const int width,
    const float eps,
    float* __restrict__ xs,          // [R, K, X]
    const int R, const int K, const int Y, const int X) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 rows = (i64)R * K, step = (i64)gridDim.x * warps;
    for (i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32; row < rows; row += step) {
        const float* from = x + row * Y + (Y - X);
        const float scale = row_scale(from, gram, X, width, eps);
        for (int c = lane; c < X; c += 32) xs[row * X + c] = from[c] * scale;
    }
}
