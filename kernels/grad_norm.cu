// PARTS blocks sum their runs; the last of them sums the parts.
#include "reduce.cuh"
#include "last_block.cuh"

#define AHEAD 16  // loads of a thread in flight

extern "C" __global__ void grad_norm(
    const float* __restrict__ grad,  // [S]
    float* parts,                    // [PARTS]
    float* norm, float* isv, const int S) {
    __shared__ float scratch[32];
    const int run = max(MIN_RUN, (S + PARTS - 1) / PARTS);
    const int start = blockIdx.x * run, stop = min(start + run, S);
    float sum = 0.0f;
    for (int i = start + threadIdx.x; i < stop; i += AHEAD * blockDim.x) {
        float g[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) g[j] = i + j * blockDim.x < stop ? grad[i + j * blockDim.x] : 0.0f;
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) sum += g[j] * g[j];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;

    if (!last_block()) return;
    sum = block_sum(threadIdx.x < PARTS ? parts[threadIdx.x] : 0.0f, scratch);
    if (threadIdx.x == 0) norm[0] = isv[ISV_GRAD_NORM] = sqrtf(sum);
}
