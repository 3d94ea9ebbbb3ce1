// What the kernels that read head outputs share; kernels/heads.py has the columns.
#pragma once
#include "reduce.cuh"

// The lane of a warp with the largest value, the lowest of equal ones.
__device__ inline int first_largest(float value) {
    int at = threadIdx.x % 32;
    for (int o = 16; o; o /= 2) {
        const float other = __shfl_xor_sync(~0u, value, o);
        const int there = __shfl_xor_sync(~0u, at, o);
        if (other > value || (other == value && there < at)) { value = other; at = there; }
    }
    return __shfl_sync(~0u, at, 0);  // where a value is not a number the lanes may differ
}

// The best valid action under E[Z(s, .)], the lowest of equal ones, by a warp. A lane an action: the stride of 21 floats
// between lanes meets every bank of shared memory once. `logits`: room for N_ACTIONS * N_ATOMS floats of the warp's own.
__device__ inline int best_action(const float* head, const u8* mask, float* logits, float v_min, float step) {
    constexpr int LOADS = (N_ACTIONS * N_ATOMS + 31) / 32;
    const int lane = threadIdx.x % 32;
    float loaded[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
        const int i = lane + 32 * j;
        if (i < N_ACTIONS * N_ATOMS) loaded[j] = head[HEAD_Q + i];
    }
    const bool valid = lane < N_ACTIONS && mask[lane];
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
        const int i = lane + 32 * j;
        if (i < N_ACTIONS * N_ATOMS) logits[i] = loaded[j];
    }
    __syncwarp();
    float q = -INFINITY;
    if (valid) {
        float z[N_ATOMS];
#pragma unroll
        for (int i = 0; i < N_ATOMS; ++i) z[i] = logits[lane * N_ATOMS + i];
        float top = z[0], mass = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 1; i < N_ATOMS; ++i) top = fmaxf(top, z[i]);
#pragma unroll
        for (int i = 0; i < N_ATOMS; ++i) {
            const float e = expf(z[i] - top);
            mass += e;
            sum += (v_min + i * step) * e;
        }
        q = sum / mass;
    }
    return first_largest(q);
}
