// One block a window; see rms_bwd.cuh.
#include "rms_bwd.cuh"

extern "C" __global__ void bias_rmsnorm_bwd(
    const float* __restrict__ dn,      // [R, K, D]
    const float* __restrict__ dres,    // [R, J, D]
    const float* __restrict__ u,       // [R, K, D]
    const float* __restrict__ rstd,    // [R, K]
    const float* __restrict__ weight,  // [D]
    float* __restrict__ du,            // [R, K, D]
    float* __restrict__ partial,       // [R, V]: sums of du, then of the weight's gradient, each padded with zeros
    const int R, const int K, const int D, const int J, const int V) {
    extern __shared__ float4 shared[];
    const i64 row = (i64)blockIdx.x * K * D;
    const int padded = (D + PAD - 1) / PAD * PAD;
    float* sums = partial + (i64)blockIdx.x * V;
    for (int c = threadIdx.x; c < V; c += blockDim.x)
        if (c >= 2 * padded || c % padded >= D) sums[c] = 0.0f;
    window_bwd<true>({dn + row, dres + (i64)blockIdx.x * J * D, u + row, rstd + (i64)blockIdx.x * K, weight, du + row,
                      sums, sums + padded, K, J, D}, (float*)shared);
}
