// Sums over a block in any number type, and rows copied by whole warps. Needs common.cuh first.
#pragma once

// Sum over the block, the same bits on every run: a butterfly in each warp, then one over the warps. `scratch` holds 32
// values; every thread calls it, all of them get the sum; blocks are whole warps.
template <class T>
__device__ inline T block_total(T value, T* scratch) {
    for (int o = 16; o; o /= 2) value += __shfl_xor_sync(~0u, value, o);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : T(0);
    for (int o = 16; o; o /= 2) value += __shfl_xor_sync(~0u, value, o);
    __syncthreads();  // the next call may reuse scratch
    return value;
}

// As block_total, of N values at once: v[i] becomes its sum. `scratch` holds 32 * N values; N is at most 32, and no more
// than the block has warps.
template <int N, class T>
__device__ inline void block_totals(T (&v)[N], T* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < N; ++i) {
        for (int o = 16; o; o /= 2) v[i] += __shfl_xor_sync(~0u, v[i], o);
        if (lane == 0) scratch[i * 32 + warp] = v[i];
    }
    __syncthreads();
    if (warp < N) {
        T sum = lane < blockDim.x / 32 ? scratch[warp * 32 + lane] : T(0);
        for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
        if (lane == 0) scratch[warp * 32] = sum;  // read before by this warp only
    }
    __syncthreads();
    for (int i = 0; i < N; ++i) v[i] = scratch[i * 32];
    __syncthreads();
}

// Largest value of the block; as block_total. A NaN is passed over.
__device__ inline float block_max(float value, float* scratch) {
    for (int o = 16; o; o /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, o));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : -INFINITY;
    for (int o = 16; o; o /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, o));
    __syncthreads();
    return value;
}

// dst[0:n] = src[0:n] by `threads` threads of which this is number `t`; 16 bytes a thread where both rows allow it.
template <class T>
__device__ inline void copy_row(T* __restrict__ dst, const T* __restrict__ src, i64 n, i64 t, i64 threads) {
    const i64 per = 16 / sizeof(T);
    i64 done = 0;
    if ((((u64)dst | (u64)src) & 15) == 0) {
        done = n / per * per;
        for (i64 i = t; i < done / per; i += threads) ((uint4*)dst)[i] = ((const uint4*)src)[i];
    }
    for (i64 i = done + t; i < n; i += threads) dst[i] = src[i];
}
