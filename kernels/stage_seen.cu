#include "copy.cuh"

extern "C" __global__ void stage_seen(
    const int* __restrict__ row,        // [B]
    const u8* __restrict__ mask,        // [B, A]
    const float* __restrict__ private,  // [B, P]
    const float* __restrict__ h,        // [B, H]
    int* __restrict__ to_row,           // [B]
    u8* __restrict__ to_mask,           // [B, A]
    float* __restrict__ to_private,     // [B, P]
    float* __restrict__ to_h_prev,      // [B, H]
    const int B, const int A, const int P, const int H) {
    const i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x, threads = (i64)gridDim.x * blockDim.x;
    copy_row(to_h_prev, h, (i64)B * H, t, threads);
    copy_row(to_private, private, (i64)B * P, t, threads);
    copy_row(to_mask, mask, (i64)B * A, t, threads);
    copy_row(to_row, row, B, t, threads);
}
