// PARTS blocks: each updates its run of every segment and sums what the controllers read. The last block adds the parts in
// a fixed order, writes the signals and advances the update counter that the others have read.
#include "reduce.cuh"
#include "last_block.cuh"

#define AHEAD 4  // values of a thread whose loads are in flight
#define SUMS (N_GROUPS * 3)
static_assert(SUMS <= 32, "a warp finishes them");

__device__ inline float lr_factor(i64 done, i64 decay_steps) {
    return decay_steps ? fmaxf(0.0f, 1.0f - (float)((double)done / (double)decay_steps)) : 1.0f;
}

// b1^t and b2^t by squaring: in double, as b2 = 0.99 and t = 100,000 would lose the correction's digits in float, and
// without pow, which takes ten times as long.
__device__ inline void powers(double b1, double b2, i64 t, double& power1, double& power2) {
    power1 = power2 = 1.0;
    for (; t; t /= 2) {
        if (t % 2) { power1 *= b1; power2 *= b2; }
        b1 *= b1; b2 *= b2;
    }
}

extern "C" __global__ void __launch_bounds__(512, 2) adam_arena(
    float* __restrict__ param, const float* __restrict__ grad, float* __restrict__ m, float* __restrict__ v,
    float* __restrict__ target,                           // [S]
    const int* start, const int* stop, const int* group,  // [SEG]
    const float* norm, i64* count, int* bad,              // [1]
    float* parts,                                         // [SEG, 3, PARTS]
    float* isv, const float b1, const float b2, const float adam_eps, const float grad_clip, const i64 lr_decay_steps,
    const int S, const int SEG) {
    __shared__ float scratch[3 * 32], rates[2], totals[SUMS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float length = norm[0], tau = isv[ISV_TAU];
    const bool good = isfinite(length);
    const float scale = fminf(1.0f, grad_clip / (length + 1e-6f));
    for (int segment = 0; segment < SEG; ++segment) {
        const int a = start[segment], b = stop[segment];
        const int part = (blockIdx.x + segment * (PARTS / SEG)) % PARTS;  // short segments: not all with the same blocks
        const int run = max(MIN_RUN, (b - a + PARTS - 1) / PARTS);
        const int first = a + part * run, last = min(first + run, b);
        float sums[3] = {};  // of change^2, param^2, (param - target)^2
        for (int from = first; from < last; from += AHEAD * blockDim.x) {
            const int base = from + threadIdx.x;
            float g[AHEAD], mi[AHEAD], vi[AHEAD], pi[AHEAD], qi[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int i = min(base + j * (int)blockDim.x, last - 1);
                g[j] = grad[i]; mi[j] = m[i]; vi[j] = v[i]; pi[j] = param[i]; qi[j] = target[i];
            }
            if (from == first) {  // one thread, while those loads are on their way
                if (threadIdx.x == 0) {
                    const i64 done = count[0];
                    double power1, power2;
                    powers(b1, b2, done + 1, power1, power2);
                    rates[0] = (float)(1.0 / sqrt(1.0 - power2));
                    rates[1] = (float)(-(double)(isv[ISV_LR_ENCODER + group[segment]] * lr_factor(done, lr_decay_steps)) /
                                       (1.0 - power1));
                }
                __syncthreads();
            }
            const float root = rates[0], rate = rates[1];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int i = base + j * blockDim.x;
                const float clipped = g[j] * scale;
                const float m1 = mi[j] * b1 + (1.0f - b1) * clipped;
                const float v1 = vi[j] * b2 + (1.0f - b2) * clipped * clipped;
                const float change = rate * m1 / (sqrtf(v1) * root + adam_eps);
                const float p = pi[j] + change, q = qi[j] + tau * (p - qi[j]);
                if (i >= last || !good) continue;
                m[i] = m1; v[i] = v1; param[i] = p; target[i] = q;
                sums[0] += change * change; sums[1] += p * p; sums[2] += (p - q) * (p - q);
            }
        }
        if (first < last) block_sums(sums, scratch);  // all threads or none
        if (threadIdx.x == 0 && good)
            for (int k = 0; k < 3; ++k) parts[((i64)segment * 3 + k) * PARTS + part] = sums[k];
    }

    if (!last_block()) return;
    if (!good) {
        if (threadIdx.x == 0) bad[0] = 1;
        return;
    }
    for (int i = warp; i < SUMS; i += blockDim.x / 32) {  // a warp a sum
        float sum = 0.0f;
        for (int s = 0; s < SEG; ++s) {
            if (group[s] != i / 3) continue;
#pragma unroll
            for (int p = 0; p < PARTS; p += 32) sum += parts[((i64)s * 3 + i % 3) * PARTS + p + lane];
        }
        sum = warp_sum(sum);
        if (lane == 0) totals[i] = sum;
    }
    __syncthreads();
    if (warp > 0) return;
    const float tiny = 1.17549435e-38f;
    const float* own = totals + min(lane, N_GROUPS - 1) * 3;
    const float param2 = warp_sum(lane < N_GROUPS ? own[1] : 0.0f), gap2 = warp_sum(lane < N_GROUPS ? own[2] : 0.0f);
    if (lane < N_GROUPS) isv[ISV_UPDATE_RMS_ENCODER + lane] = sqrtf(own[0]) / fmaxf(sqrtf(own[1]), tiny);
    if (lane > 0) return;
    isv[ISV_TARGET_DISTANCE] = sqrtf(gap2) / fmaxf(sqrtf(param2), tiny);
    isv[ISV_LR_FACTOR] = lr_factor(count[0], lr_decay_steps);
    count[0] += 1;
}
