// One warp a row; see rms.cuh.
#include "rms.cuh"

extern "C" __global__ void rmsnorm_tail(
    const float* __restrict__ u,       // [R, K, D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ n,             // [R, K, D]
    float* __restrict__ rstd,          // [R, K]
    float* __restrict__ tail,          // [R, 4, D]
    float* __restrict__ last,          // [R, D]
    const int R, const int K, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= (i64)R * K) return;
    const i64 r = row / K;
    const int j = (int)(row - r * K) - (K - 4);
    float *copy = j < 0 ? nullptr : tail + (r * 4 + j) * D, *another = j < 3 ? nullptr : last + r * D;
    add_norm(u + row * D, nullptr, weight, eps, nullptr, n + row * D, rstd + row, D, copy, another);
}
