// As window_tail.cu, the other way round.
#include "common.cuh"

__device__ inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <typename T>
__device__ inline void add(
    const T* __restrict__ dtail, const T* __restrict__ dlast, T* __restrict__ dn, const int R, const int D, const int K) {
    FOR_EACH(i, (i64)4 * R * D) {
        const i64 r = i / (4 * D);
        const int at = (int)(i - r * 4 * D);
        T* const place = dn + (r * K + K - 4) * D + at;
        T sum = *place + dtail[i];
        if (at >= 3 * D) sum = sum + dlast[r * D + at - 3 * D];
        *place = sum;
    }
}

extern "C" __global__ void window_tail_bwd(
    const float* __restrict__ dtail,  // [R, 4, D]
    const float* __restrict__ dlast,  // [R, D]
    float* __restrict__ dn,           // [R, K, D]
    const int R, const int D, const int K) {
    if (D % 4 == 0) add((const float4*)dtail, (const float4*)dlast, (float4*)dn, R, D / 4, K);
    else add(dtail, dlast, dn, R, D, K);
}
