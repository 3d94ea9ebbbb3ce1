// Phase 1: grid (PARTS, SEG), each block updates its run of one segment and sums what the controllers read. Phase 2: one
// block adds the parts in a fixed order, writes the signals and advances the update counter that phase 1 reads.
#include "common.cuh"

#define ARGS                                                                                                      \
    float *param, const float *grad, float *m, float *v, float *target, const int *start, const int *stop,        \
        const int *group, const float *norm, i64 *count, int *bad, float *parts, float *isv, const float b1,      \
        const float b2, const float adam_eps, const float grad_clip, const i64 lr_decay_steps, const int S, const int SEG

__device__ inline float lr_factor(i64 done, i64 decay_steps) {
    return decay_steps ? fmaxf(0.0f, 1.0f - (float)((double)done / (double)decay_steps)) : 1.0f;
}

extern "C" __global__ void adam_arena(ARGS) {
    __shared__ float scratch[256];
    const float length = norm[0];
    if (!isfinite(length)) return;
    const int segment = blockIdx.y, part = blockIdx.x;
    const int a = start[segment], b = stop[segment];
    const int run = max(MIN_RUN, (b - a + PARTS - 1) / PARTS);
    const int first = a + part * run, last = min(first + run, b);
    const i64 done = count[0];
    const float scale = fminf(1.0f, grad_clip / (length + 1e-6f));
    // Powers in double: b2 = 0.99 and t = 100,000 would lose the correction's digits in float.
    const float root = (float)(1.0 / sqrt(1.0 - pow((double)b2, (double)(done + 1))));
    const float rate = (float)(-(double)(isv[ISV_LR_ENCODER + group[segment]] * lr_factor(done, lr_decay_steps)) /
                               (1.0 - pow((double)b1, (double)(done + 1))));
    const float tau = isv[ISV_TAU];
    float change2 = 0.0f, param2 = 0.0f, gap2 = 0.0f;
    for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
        const float g = grad[i] * scale;
        const float m1 = m[i] * b1 + (1.0f - b1) * g;
        const float v1 = v[i] * b2 + (1.0f - b2) * g * g;
        const float change = rate * m1 / (sqrtf(v1) * root + adam_eps);
        const float p = param[i] + change;
        const float q = target[i] + tau * (p - target[i]);
        m[i] = m1; v[i] = v1; param[i] = p; target[i] = q;
        change2 += change * change; param2 += p * p; gap2 += (p - q) * (p - q);
    }
    float* out = parts + ((i64)segment * 3) * PARTS + part;
    change2 = block_sum(change2, scratch); param2 = block_sum(param2, scratch); gap2 = block_sum(gap2, scratch);
    if (threadIdx.x == 0) { out[0] = change2; out[PARTS] = param2; out[2 * PARTS] = gap2; }
}

extern "C" __global__ void adam_arena_finish(ARGS) {
    __shared__ float scratch[256];
    if (!isfinite(norm[0])) {
        if (threadIdx.x == 0) bad[0] = 1;
        return;
    }
    float sums[N_GROUPS][3] = {};
    for (int s = 0; s < SEG; ++s)
        for (int k = 0; k < 3; ++k) {
            const float sum = block_sum(parts[((i64)s * 3 + k) * PARTS + threadIdx.x], scratch);
            for (int g = 0; g < N_GROUPS; ++g) sums[g][k] += g == group[s] ? sum : 0.0f;
        }
    if (threadIdx.x) return;
    const float tiny = 1.17549435e-38f;
    float length = 0.0f, gap = 0.0f;
    for (int g = 0; g < N_GROUPS; ++g) {
        isv[ISV_UPDATE_RMS_ENCODER + g] = sqrtf(sums[g][0]) / fmaxf(sqrtf(sums[g][1]), tiny);
        length += sums[g][1];
        gap += sums[g][2];
    }
    isv[ISV_TARGET_DISTANCE] = sqrtf(gap) / fmaxf(sqrtf(length), tiny);
    isv[ISV_LR_FACTOR] = lr_factor(count[0], lr_decay_steps);
    count[0] += 1;
}
