// Pieces of 16 bytes where the rows allow it.
#include "common.cuh"

template <typename T>
__device__ inline void gather(
    const int* __restrict__ row, const T* __restrict__ table, const int base, T* __restrict__ enc, const int B,
    const int D) {
    FOR_EACH(i, (i64)B * D) {
        const i64 b = i / D;
        enc[i] = table[((i64)row[b] - base) * D + i - b * D];
    }
}

extern "C" __global__ void gather_encodings(
    const int* __restrict__ row,       // [B]
    const float* __restrict__ table,   // [V, D]
    const float* __restrict__ ts_gap,  // [N]
    const int base,
    float* __restrict__ enc,           // [B, D]
    float* __restrict__ ts,            // [B]
    const int B, const int V, const int D, const int N) {
    if (D % 4 == 0) gather(row, (const float4*)table, base, (float4*)enc, B, D / 4);
    else gather(row, table, base, enc, B, D);
    FOR_EACH(b, B) ts[b] = ts_gap[row[b]];
}
