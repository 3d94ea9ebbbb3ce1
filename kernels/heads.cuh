// What the kernels that read head outputs share; kernels/heads.py has the columns.
#pragma once
#include "reduce.cuh"

// The best valid action under E[Z(s', .)], the lowest of equal ones. A lane an action: the stride of 21 floats between
// lanes meets every bank of shared memory once.
__device__ inline int best_action(const float* next, const u8* mask, float* logits, float v_min, float step) {
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < N_ACTIONS * N_ATOMS; i += 32) logits[i] = next[i];
    __syncwarp();
    float q = -INFINITY;
    int best = lane;
    if (lane < N_ACTIONS && mask[lane]) {
        const float* z = logits + lane * N_ATOMS;
        float top = z[0], mass = 0.0f, sum = 0.0f;
        for (int i = 1; i < N_ATOMS; ++i) top = fmaxf(top, z[i]);
        for (int i = 0; i < N_ATOMS; ++i) {
            const float e = expf(z[i] - top);
            mass += e;
            sum += (v_min + i * step) * e;
        }
        q = sum / mass;
    }
    for (int o = 16; o; o /= 2) {
        const float other = __shfl_xor_sync(~0u, q, o);
        const int at = __shfl_xor_sync(~0u, best, o);
        if (other > q || (other == q && at < best)) { q = other; best = at; }
    }
    return __shfl_sync(~0u, best, 0);  // where a q is not a number the lanes may differ
}
