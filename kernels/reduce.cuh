// Reductions in a fixed order, so that every run has the same bits: a butterfly over a warp, then one over a block's warps.
#pragma once
#include "common.cuh"

// Both addends change sides from lane to lane, which changes no bit: every lane gets the same sum.
template <class T>
__device__ inline T warp_sum(T v) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
// A NaN is passed over.
__device__ inline float warp_max(float v) {
    for (int o = 16; o; o /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// v[i] becomes its sum over the block, for every thread. All threads call it; blocks are whole warps; `scratch` holds
// 32 * N values.
template <int N, class T>
__device__ inline void block_sums(T (&v)[N], T* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < N; ++i) {
        v[i] = warp_sum(v[i]);
        if (lane == 0) scratch[i * 32 + warp] = v[i];
    }
    __syncthreads();
    for (int i = 0; i < N; ++i) v[i] = warp_sum(lane < blockDim.x / 32 ? scratch[i * 32 + lane] : T(0));
    __syncthreads();  // the next call may reuse scratch
}

// As block_sums, of one value.
template <class T>
__device__ inline T block_sum(T value, T* scratch) {
    T v[1] = {value};
    block_sums(v, scratch);
    return v[0];
}

// Largest value of the block; as block_sum. A NaN is passed over.
__device__ inline float block_max(float value, float* scratch) {
    value = warp_max(value);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : -INFINITY);
    __syncthreads();
    return value;
}
