// One block, so that a barrier orders reading the counters and moving them: M is a batch, a few values a thread.
#include "common.cuh"

__device__ inline u32 feistel(u32 x, int half, const u32* keys) {
    const u32 low = (1u << half) - 1u;
    u32 left = x >> half, right = x & low;
    for (int i = 0; i < FEISTEL_ROUNDS; ++i) {
        u32 f = right ^ keys[i];
        f ^= f >> 16;
        f *= 0x85EBCA6Bu;
        f ^= f >> 13;
        f *= 0xC2B2AE35u;
        f ^= f >> 16;
        const u32 next = left ^ (f & low);
        left = right;
        right = next;
    }
    return (left << half) | right;
}

extern "C" __global__ void rollout_serve(
    const i64* active,   // [1]
    const int* length,   // [2]
    i64* epoch, i64* position, const i8* valid, const u32 seed,
    int* __restrict__ index,  // [M]
    const int TM, const int B, const int M) {
    __shared__ u32 keys[8];
    const int buffer = (int)(1 - active[0]);
    const i64 n = (i64)length[buffer] * B;
    const i64 place = position[0], number = epoch[0];
    const bool anew = (place + 1) * M > n;
    const i64 served = anew ? 0 : place, permutation = anew ? number + 1 : number;
    if (threadIdx.x < 2) {
        const Philox w = philox(permutation, threadIdx.x, PURPOSE_ROLLOUT, seed);
        u32* k = keys + 4 * threadIdx.x;
        k[0] = w.x0; k[1] = w.x1; k[2] = w.x2; k[3] = w.x3;
    }
    __syncthreads();
    const int bits = 32 - __clz((int)(n - 1));
    const int half = max(1, (bits + 1) / 2);
    for (int m = threadIdx.x; m < M; m += blockDim.x) {
        u32 x = (u32)(served * M + m);
        do x = feistel(x, half, keys); while (x >= (u64)n);  // walks the cycle back into 0..n-1
        index[m] = (int)(x + (u32)((i64)buffer * TM * B));
    }
    if (threadIdx.x == 0) {
        epoch[0] = permutation;
        position[0] = served + 1;
    }
}
