#include "pieces.cuh"

// u [R, U] -> v [R, U + 4]: activations, 1, 0, 0, 0
template <int N>
__device__ inline void activate(const float* __restrict__ u, float* __restrict__ v, const int R, const int U, const int U4) {
    FOR_EACH(i, (i64)R * (U4 / N)) {
        const i64 r = i / (U4 / N);
        const int c = (int)(i - r * (U4 / N)) * N;
        if (c >= U) {
            store(v + i * N, one_and_zeros<N>(c - U));
            continue;
        }
        Piece<N> x = load<N>(u + r * U + c);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = SCALE * tanhf(SLOPE * x[k]);
        store(v + i * N, x);
    }
}

extern "C" __global__ void lecun_tanh(
    const float* __restrict__ u,  // [R, U]
    float* __restrict__ v,        // [R, U + 4]
    const int R, const int U, const int U4) {
    if (U % 4 == 0) activate<4>(u, v, R, U, U4);
    else activate<1>(u, v, R, U, U4);
}
