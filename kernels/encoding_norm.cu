// One warp a window: the last of the J rows of `base`; see rms.cuh.
#include "rms.cuh"

extern "C" __global__ void encoding_norm(
    const float* __restrict__ base,    // [R, J, D]
    const float* __restrict__ delta,   // [R, D]
    const float* __restrict__ weight,  // [D]
    const float eps,
    float* __restrict__ res,           // [R, D]
    float* __restrict__ enc,           // [R, D]
    float* __restrict__ rstd,          // [R]
    const int R, const int J, const int D) {
    const i64 r = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (r >= R) return;
    add_norm(base + (r * J + J - 1) * D, delta + r * D, weight, eps, res + r * D, enc + r * D, rstd + r, D);
}
