// One warp a row; see rms.cuh.
#include "rms.cuh"

extern "C" __global__ void rmsnorm(
    const float* __restrict__ u,       // [R, K, D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ n,             // [R, K, D]
    float* __restrict__ rstd,          // [R, K]
    const int R, const int K, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= (i64)R * K) return;
    add_norm(u + row * D, nullptr, weight, eps, nullptr, n + row * D, rstd + row, D);
}
