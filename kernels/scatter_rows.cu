// Pieces of 16 bytes where the rows allow it. Threads that write one place write the same bits.
#include "common.cuh"

template <typename T>
__device__ inline void scatter(
    const T* __restrict__ rows, const int* __restrict__ index, T* __restrict__ table, const int R, const int D) {
    FOR_EACH(i, (i64)R * D) {
        const i64 r = i / D;
        table[(i64)index[r] * D + i - r * D] = rows[i];
    }
}

extern "C" __global__ void scatter_rows(
    const float* __restrict__ rows,  // [R, D]
    const int* __restrict__ index,   // [R]
    float* __restrict__ table,       // [V, D]
    const int R, const int D, const int V) {
    if (D % 4 == 0) scatter((const float4*)rows, index, (float4*)table, R, D / 4);
    else scatter(rows, index, table, R, D);
}
