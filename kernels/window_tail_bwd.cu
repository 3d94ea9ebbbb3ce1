// As window_tail.cu, the other way round.
#include "common.cuh"

__device__ inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <typename T>
__device__ inline void add(const T* __restrict__ dtail, T* __restrict__ dn, const int R, const int D, const int K) {
    FOR_EACH(i, (i64)4 * R * D) {
        const i64 row = i / D, j = row / R, r = row - j * R, at = (r * K + K - 4 + j) * D + i - row * D;
        dn[at] = dn[at] + dtail[i];
    }
}

extern "C" __global__ void window_tail_bwd(
    const float* __restrict__ dtail,  // [4, R, D]
    float* __restrict__ dn,           // [R, K, D]
    const int R, const int D, const int K) {
    if (D % 4 == 0) add((const float4*)dtail, (float4*)dn, R, D / 4, K);
    else add(dtail, dn, R, D, K);
}
