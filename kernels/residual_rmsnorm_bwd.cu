// One block a window; see rms_bwd.cuh.
#include "rms_bwd.cuh"

extern "C" __global__ void residual_rmsnorm_bwd(
    const float* __restrict__ dn,      // [R, K, D]
    const float* __restrict__ dres,    // [R, J, D]
    const float* __restrict__ res,     // [R, K, D]
    const float* __restrict__ rstd,    // [R, K]
    const float* __restrict__ weight,  // [D]
    float* __restrict__ du,            // [R, K, D]
    float* __restrict__ partial,       // [R, D]
    const int R, const int K, const int D, const int J) {
    extern __shared__ float4 shared[];
    const i64 row = (i64)blockIdx.x * K * D;
    window_bwd<false>({dn + row, dres + (i64)blockIdx.x * J * D, res + row, rstd + (i64)blockIdx.x * K, weight, du + row,
                       nullptr, partial + (i64)blockIdx.x * D, K, J, D}, (float*)shared);
}
