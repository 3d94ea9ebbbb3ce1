// Reductions in a fixed order, so that every run has the same bits: over a warp by shuffles, over a block warp by warp.
#pragma once
#include "common.cuh"

// Both addends change sides from lane to lane, which changes no bit: every lane gets the same sum.
__device__ inline float warp_sum(float v) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
__device__ inline float warp_max(float v) {
    for (int o = 16; o; o /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// v[i] becomes its sum over the block, for every thread. All threads must call it; `scratch` holds 32 * N floats.
template <int N>
__device__ inline void block_sums(float (&v)[N], float* scratch) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int i = 0; i < N; ++i) {
        const float sum = warp_sum(v[i]);
        if (threadIdx.x % 32 == 0) scratch[warp * N + i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < N) {
        float sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += scratch[w * N + threadIdx.x];
        scratch[threadIdx.x] = sum;  // read before by this thread only
    }
    __syncthreads();
    for (int i = 0; i < N; ++i) v[i] = scratch[i];
    __syncthreads();
}
