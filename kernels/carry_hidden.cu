#include "common.cuh"

extern "C" __global__ void carry_hidden(
    const float* __restrict__ h,   // [B, H]
    const i8* __restrict__ valid,  // [B]
    float* __restrict__ h_next,    // [B, H]
    const int B, const int H) {
    FOR_EACH(i, (i64)B * H) h_next[i] = h[i] * (valid[i / H] ? 1.0f : 0.0f);
}
