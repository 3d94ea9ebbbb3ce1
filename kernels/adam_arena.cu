// Phase 1: grid (PARTS, SEG), each block updates its run of one segment and sums what the controllers read. Phase 2: one
// block adds the parts in a fixed order, writes the signals and advances the update counter that phase 1 reads.
#include "reduce.cuh"

#define AHEAD 4  // values of a thread whose loads are in flight

#define ARGS                                                                                                      \
    float *__restrict__ param, const float *__restrict__ grad, float *__restrict__ m, float *__restrict__ v,      \
        float *__restrict__ target, const int *start, const int *stop, const int *group, const float *norm,       \
        i64 *count, int *bad, float *parts, float *isv, const float b1, const float b2, const float adam_eps,     \
        const float grad_clip, const i64 lr_decay_steps, const int S, const int SEG

__device__ inline float lr_factor(i64 done, i64 decay_steps) {
    return decay_steps ? fmaxf(0.0f, 1.0f - (float)((double)done / (double)decay_steps)) : 1.0f;
}

extern "C" __global__ void adam_arena(ARGS) {
    __shared__ float scratch[3 * 32];
    const float length = norm[0];
    if (!isfinite(length)) return;
    const int segment = blockIdx.y, part = blockIdx.x;
    const int a = start[segment], b = stop[segment];
    const int run = max(MIN_RUN, (b - a + PARTS - 1) / PARTS);
    const int first = a + part * run, last = min(first + run, b);
    float* out = parts + ((i64)segment * 3) * PARTS + part;
    if (first >= last) {
        if (threadIdx.x < 3) out[threadIdx.x * PARTS] = 0.0f;
        return;
    }
    const i64 done = count[0];
    const float scale = fminf(1.0f, grad_clip / (length + 1e-6f));
    // Powers in double: b2 = 0.99 and t = 100,000 would lose the correction's digits in float.
    const float root = (float)(1.0 / sqrt(1.0 - pow((double)b2, (double)(done + 1))));
    const float rate = (float)(-(double)(isv[ISV_LR_ENCODER + group[segment]] * lr_factor(done, lr_decay_steps)) /
                               (1.0 - pow((double)b1, (double)(done + 1))));
    const float tau = isv[ISV_TAU];
    float sums[3] = {};  // of change^2, param^2, (param - target)^2
    for (int base = first + threadIdx.x; base < last; base += AHEAD * blockDim.x) {
        float g[AHEAD], mi[AHEAD], vi[AHEAD], pi[AHEAD], qi[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = min(base + j * (int)blockDim.x, last - 1);
            g[j] = grad[i] * scale; mi[j] = m[i]; vi[j] = v[i]; pi[j] = param[i]; qi[j] = target[i];
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = base + j * blockDim.x;
            const float m1 = mi[j] * b1 + (1.0f - b1) * g[j];
            const float v1 = vi[j] * b2 + (1.0f - b2) * g[j] * g[j];
            const float change = rate * m1 / (sqrtf(v1) * root + adam_eps);
            const float p = pi[j] + change, q = qi[j] + tau * (p - qi[j]);
            if (i >= last) continue;
            m[i] = m1; v[i] = v1; param[i] = p; target[i] = q;
            sums[0] += change * change; sums[1] += p * p; sums[2] += (p - q) * (p - q);
        }
    }
    block_sums(sums, scratch);
    if (threadIdx.x == 0)
        for (int k = 0; k < 3; ++k) out[k * PARTS] = sums[k];
}

extern "C" __global__ void adam_arena_finish(ARGS) {
    extern __shared__ float totals[];  // [SEG, 3]
    if (!isfinite(norm[0])) {
        if (threadIdx.x == 0) bad[0] = 1;
        return;
    }
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < SEG * 3; i += blockDim.x / 32) {  // a warp a sum
        float sum = 0.0f;
        for (int p = lane; p < PARTS; p += 32) sum += parts[(i64)i * PARTS + p];
        sum = warp_sum(sum);
        if (lane == 0) totals[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x) return;
    float sums[N_GROUPS][3] = {};
    for (int i = 0; i < SEG * 3; ++i)
        for (int g = 0; g < N_GROUPS; ++g) sums[g][i % 3] += g == group[i / 3] ? totals[i] : 0.0f;
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
