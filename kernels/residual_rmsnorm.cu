// One warp a row; see rms.cuh.
#include "rms.cuh"

extern "C" __global__ void residual_rmsnorm(
    const float* __restrict__ base,    // [R, K, D]
    const float* __restrict__ delta,   // [R, K, D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ res,           // [R, K, D]
    float* __restrict__ n,             // [R, K, D]
    float* __restrict__ rstd,          // [R, K]
    const int R, const int K, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= (i64)R * K) return;
    add_norm(base + row * D, delta + row * D, weight, eps, res + row * D, n + row * D, rstd + row, D);
}
