// Rows copied by many threads.
#pragma once
#include "common.cuh"

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
