// A block sums blockDim.x neighbouring columns; its blockDim.y threads of a column take rows in turn and meet in a tree.
#include "common.cuh"

#define AHEAD 8  // loads of a thread in flight

extern "C" __global__ void column_sum(
    const float* __restrict__ x,  // [N, C]
    float* __restrict__ out,      // [C]
    const int N, const int C) {
    __shared__ float sums[512];
    const int c = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.y * blockDim.x + threadIdx.x;
    const i64 step = (i64)blockDim.y * C;
    float sum = 0.0f;
    if (c < C) {
        const float* at = x + (i64)threadIdx.y * C + c;
        int left = N > threadIdx.y ? (N - 1 - threadIdx.y) / blockDim.y + 1 : 0;  // rows of this thread
        for (; left >= AHEAD; left -= AHEAD, at += AHEAD * step) {
            float v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) v[i] = at[i * step];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) sum += v[i];
        }
        for (; left > 0; --left, at += step) sum += *at;
    }
    sums[t] = sum;
    __syncthreads();
    for (int half = blockDim.y / 2; half; half /= 2) {
        if (threadIdx.y < half) sums[t] += sums[t + half * blockDim.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && c < C) out[c] = sums[t];
}
