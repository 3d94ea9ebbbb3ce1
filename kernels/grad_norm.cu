// Two phases, because the second needs every block of the first: PARTS blocks sum their runs, one block sums the parts.
#include "common.cuh"

extern "C" __global__ void grad_norm(
    const float* __restrict__ grad,  // [S]
    float* __restrict__ parts,       // [PARTS]
    float* norm, float* isv, const int S) {
    __shared__ float scratch[256];
    const int run = max(MIN_RUN, (S + PARTS - 1) / PARTS);
    const int start = blockIdx.x * run, stop = min(start + run, S);
    float sum = 0.0f;
    for (int i = start + threadIdx.x; i < stop; i += blockDim.x) sum += grad[i] * grad[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void grad_norm_finish(const float* grad, float* parts, float* norm, float* isv, const int S) {
    __shared__ float scratch[256];
    const float sum = block_sum(threadIdx.x < PARTS ? parts[threadIdx.x] : 0.0f, scratch);
    if (threadIdx.x == 0) norm[0] = isv[ISV_GRAD_NORM] = sqrtf(sum);
}
