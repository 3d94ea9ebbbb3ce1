// A copy in pieces of 16 bytes where the rows allow it.
#include "common.cuh"

template <typename T>
__device__ inline void copy(const T* __restrict__ n, T* __restrict__ tail, const int R, const int K, const int D) {
    FOR_EACH(i, (i64)4 * R * D) {
        const i64 row = i / D, j = row / R, r = row - j * R;
        tail[i] = n[(r * K + K - 4 + j) * D + i - row * D];
    }
}

extern "C" __global__ void window_tail(
    const float* __restrict__ n,  // [R, K, D]
    float* __restrict__ tail,     // [4, R, D]
    const int R, const int K, const int D) {
    if (D % 4 == 0) copy((const float4*)n, (float4*)tail, R, K, D / 4);
    else copy(n, tail, R, K, D);
}
