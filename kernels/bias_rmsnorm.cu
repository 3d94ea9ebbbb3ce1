// One warp a row; see rms.cuh. `u` and `bias` are not restrict: the sum goes back into `u`.
#include "rms.cuh"

extern "C" __global__ void bias_rmsnorm(
    float* u,                          // [R, K, D]
    const float* bias,                 // [D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ n,             // [R, K, D]
    float* __restrict__ rstd,          // [R, K]
    const int R, const int K, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= (i64)R * K) return;
    add_norm(u + row * D, bias, weight, eps, u + row * D, n + row * D, rstd + row, D);
}
