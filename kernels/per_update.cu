// One block, so that a barrier lies between clearing the slots and raising them. Losses are not below zero, and the bits
// of such floats are ordered like integers: an integer maximum, whose order does not matter.
#include "reduce.cuh"

extern "C" __global__ void per_update(
    const int* __restrict__ slots,    // [M]
    const float* __restrict__ loss,   // [M]
    float* priority,                  // [C]
    float* max_priority, const int M, const int C) {
    __shared__ float scratch[32];
    for (int m = threadIdx.x; m < M; m += blockDim.x) priority[slots[m]] = 0.0f;
    __syncthreads();
    float top = 0.0f;
    for (int m = threadIdx.x; m < M; m += blockDim.x) {
        const float value = fmaxf(loss[m], 0.0f);  // 0 for NaN
        atomicMax((int*)priority + slots[m], __float_as_int(value));
        top = fmaxf(top, value);
    }
    top = block_max(top, scratch);
    if (threadIdx.x == 0) max_priority[0] = fmaxf(max_priority[0], top);
}
