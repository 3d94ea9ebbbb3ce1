#include "common.cuh"

extern "C" __global__ void lecun_tanh_bwd(
    const float* __restrict__ dv,  // [R, U + 4]
    const float* __restrict__ v,   // [R, U + 4]
    float* __restrict__ du,        // [R, U]
    const int R, const int U4, const int U) {
    FOR_EACH(i, (i64)R * U) {
        const i64 r = i / U, at = r * U4 + i - r * U;
        du[i] = (SLOPE * SCALE - SLOPE / SCALE * v[at] * v[at]) * dv[at];
    }
}
