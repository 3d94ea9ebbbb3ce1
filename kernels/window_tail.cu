// A copy in pieces of 16 bytes where the rows allow it. A window's four rows are one piece of memory on both sides.
#include "common.cuh"

template <typename T>
__device__ inline void copy(
    const T* __restrict__ n, T* __restrict__ tail, T* __restrict__ last, const int R, const int K, const int D) {
    FOR_EACH(i, (i64)4 * R * D) {
        const i64 r = i / (4 * D);
        const int at = (int)(i - r * 4 * D);
        const T value = n[(r * K + K - 4) * D + at];
        tail[i] = value;
        if (at >= 3 * D) last[r * D + at - 3 * D] = value;
    }
}

extern "C" __global__ void window_tail(
    const float* __restrict__ n,  // [R, K, D]
    float* __restrict__ tail,     // [R, 4, D]
    float* __restrict__ last,     // [R, D]
    const int R, const int K, const int D) {
    if (D % 4 == 0) copy((const float4*)n, (float4*)tail, (float4*)last, R, K, D / 4);
    else copy(n, tail, last, R, K, D);
}
