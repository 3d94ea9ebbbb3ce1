#include "pieces.cuh"

template <int N>
__device__ inline void activate_bwd(
    const float* __restrict__ dv, const float* __restrict__ v, float* __restrict__ du, const int R, const int U4, const int U) {
    FOR_EACH(i, (i64)R * (U / N)) {
        const i64 r = i / (U / N), at = (i + r * (4 / N)) * N;  // 4 columns more in each row before
        const Piece<N> y = load<N>(v + at), dy = load<N>(dv + at);
        Piece<N> d;
#pragma unroll
        for (int k = 0; k < N; ++k) d[k] = (SLOPE * SCALE - SLOPE / SCALE * y[k] * y[k]) * dy[k];
        store(du + i * N, d);
    }
}

extern "C" __global__ void lecun_tanh_bwd(
    const float* __restrict__ dv,  // [R, U + 4]
    const float* __restrict__ v,   // [R, U + 4]
    float* __restrict__ du,        // [R, U]
    const int R, const int U4, const int U) {
    if (U % 4 == 0) activate_bwd<4>(dv, v, du, R, U4, U);
    else activate_bwd<1>(dv, v, du, R, U4, U);
}
