// A block sums blockDim.x neighbouring columns; its blockDim.y threads of a column take rows in turn and meet in a tree.
#include "common.cuh"

extern "C" __global__ void column_sum(
    const float* __restrict__ x,  // [N, C]
    float* __restrict__ out,      // [C]
    const int N, const int C) {
    __shared__ float sums[1024];
    const int c = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.y * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (c < C)
#pragma unroll 8
        for (int n = threadIdx.y; n < N; n += blockDim.y) sum += x[(i64)n * C + c];
    sums[t] = sum;
    __syncthreads();
    for (int half = blockDim.y / 2; half; half /= 2) {
        if (threadIdx.y < half) sums[t] += sums[t + half * blockDim.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && c < C) out[c] = sums[t];
}
