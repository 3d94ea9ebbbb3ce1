// One warp a window. Only R rows in all, so plain loads: the second reading comes out of the first-level cache.
#include "reduce.cuh"

extern "C" __global__ void encoding_norm_bwd(
    const float* __restrict__ dcat,    // [R, X]
    const float* __restrict__ res,     // [R, D]
    const float* __restrict__ rstd,    // [R]
    const float* __restrict__ weight,  // [D]
    float* __restrict__ dres,          // [R, 1, D]
    float* __restrict__ partial,       // [R, D]
    const int R, const int X, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= R) return;
    const float *dn = dcat + row * X, *u = res + row * D;
    const float r = rstd[row];
    float inner = 0.0f;
#pragma unroll 4
    for (int c = lane; c < D; c += 32) inner += dn[c] * (u[c] * r) * weight[c];
    const float mean = -warp_sum(inner) / D;
#pragma unroll 4
    for (int c = lane; c < D; c += 32) {
        const float v = u[c] * r;
        dres[row * D + c] = (dn[c] * weight[c] + v * mean) * r;
        partial[row * D + c] = dn[c] * v;
    }
}
