// One warp a row; see rms.cuh.
#include "rms.cuh"

extern "C" __global__ void residual_rmsnorm(
    const float* __restrict__ base,    // [R, K, D]
    const float* __restrict__ delta,   // [R, K, D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ res,           // [R, J, D]
    float* __restrict__ n,             // [R, K, D]
    float* __restrict__ rstd,          // [R, K]
    const int R, const int K, const int D, const int J) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= (i64)R * K) return;
    const i64 r = row / K, j = row - r * K - (K - J);
    add_norm(base + row * D, delta + row * D, weight, eps, j < 0 ? nullptr : res + (r * J + j) * D, n + row * D, rstd + row,
             D);
}
