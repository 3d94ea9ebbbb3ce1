// A block sums the columns of blockDim.x neighbouring pieces; its blockDim.y threads of a piece take rows in turn and meet
// in a tree.
#include "pieces.cuh"

#define AHEAD 8  // loads of a thread in flight
#define THREADS 512

template <int N>
__device__ inline void sum_columns(const float* __restrict__ x, float* __restrict__ out, const int rows, const int C) {
    __shared__ Piece<N> sums[THREADS];
    const int c = (blockIdx.x * blockDim.x + threadIdx.x) * N, t = threadIdx.y * blockDim.x + threadIdx.x;
    const i64 step = (i64)blockDim.y * C;
    Piece<N> sum = {};
    if (c < C) {
        const float* at = x + (i64)threadIdx.y * C + c;
        int left = rows > threadIdx.y ? (rows - 1 - threadIdx.y) / blockDim.y + 1 : 0;  // rows of this thread
        for (; left >= AHEAD; left -= AHEAD, at += AHEAD * step) {
            Piece<N> v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) v[i] = load<N>(at + i * step);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
#pragma unroll
                for (int k = 0; k < N; ++k) sum[k] += v[i][k];
        }
        for (; left > 0; --left, at += step) {
            const Piece<N> v = load<N>(at);
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] += v[k];
        }
    }
    sums[t] = sum;
    __syncthreads();
    for (int half = blockDim.y / 2; half; half /= 2) {
        if (threadIdx.y < half)
#pragma unroll
            for (int k = 0; k < N; ++k) sums[t][k] += sums[t + half * blockDim.x][k];
        __syncthreads();
    }
    if (threadIdx.y == 0 && c < C) store(out + c, sums[t]);
}

extern "C" __global__ void column_sum(
    const float* __restrict__ x,  // [N, C]
    float* __restrict__ out,      // [C]
    const int N, const int C) {
    if (C % 4 == 0) sum_columns<4>(x, out, N, C);
    else sum_columns<1>(x, out, N, C);
}
