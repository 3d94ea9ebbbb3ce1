// A warp a replay sample; then the last block sums what the bus gets, in a fixed order. From one to the other the figures
// of a row travel in the last padding columns of its d_out, which the sum leaves at zero as the table says.
#include "heads.cuh"
#include "last_block.cuh"

#define ARGS                                                                                                         \
    const float* __restrict__ out, const float* __restrict__ next_online, const float* __restrict__ next_target,     \
        const int* __restrict__ action, const u8* __restrict__ next_mask, const float* __restrict__ rewards,         \
        const int* __restrict__ n_used, const u8* __restrict__ terminal, const float* __restrict__ is_weight,        \
        const float v_min, const float v_max, const float weight_q, float *d_out, float *priority, float *isv,       \
        const int R, const int M, const int n

#define WARPS 8
#define FIGURES 4  // weighted cross entropy, target's mean, mass on its outer atoms, E[Z(s, a)]
static_assert(HEAD_WIDTH % 4 == 0 && HEAD_WIDTH - HEAD_USED >= FIGURES, "no room for the figures");

// Sample m, by one warp.
__device__ inline void sample_loss(ARGS, const i64 m, float* logits) {
    const int lane = threadIdx.x % 32;
    const float gamma = isv[ISV_GAMMA], step = (v_max - v_min) / (N_ATOMS - 1);
    const bool is_atom = lane < N_ATOMS;
    const float atom = v_min + lane * step;
    const int taken = action[m];
    // Loaded early: none of it depends on the choice of a*.
    const float logit = is_atom ? out[m * HEAD_WIDTH + HEAD_Q + taken * N_ATOMS + lane] : -INFINITY;
    float gain = 0.0f, discount = terminal[m] ? 0.0f : 1.0f, power = 1.0f;
    for (int i = 0; i < n; ++i, power *= gamma) gain += rewards[m * n + i] * power;
    for (int i = n_used[m]; i > 0; --i) discount *= gamma;
    gain *= isv[ISV_REWARD_SCALE];

    const int best = best_action(next_online + m * HEAD_WIDTH, next_mask + m * N_ACTIONS, logits, v_min, step);
    const float judged = is_atom ? next_target[m * HEAD_WIDTH + HEAD_Q + best * N_ATOMS + lane] : -INFINITY;
    const float top = warp_max(judged);  // of the whole warp: not inside the choice below
    float probs = is_atom ? expf(judged - top) : 0.0f;
    probs /= warp_sum(probs);

    // The dense projection of kernels/c51_loss.py: lane i sums over all j.
    const float at = (fminf(fmaxf(gain + discount * atom, v_min), v_max) - v_min) / step;
    float target = 0.0f;
    for (int j = 0; j < N_ATOMS; ++j) {
        const float weight = fmaxf(1.0f - fabsf(__shfl_sync(~0u, at, j) - lane), 0.0f);
        target += weight * __shfl_sync(~0u, probs, j);
    }

    const float shifted = logit - warp_max(logit);
    const float e = is_atom ? expf(shifted) : 0.0f;
    const float total = warp_sum(e), p = e / total;
    const float entropy = -warp_sum(is_atom ? target * (shifted - logf(total)) : 0.0f);
    const float edges = __shfl_sync(~0u, target, 0) + __shfl_sync(~0u, target, N_ATOMS - 1);
    const float mean = gain + discount * warp_sum(is_atom ? probs * atom : 0.0f);
    const float q = warp_sum(is_atom ? p * atom : 0.0f);

    float* d = d_out + m * HEAD_WIDTH;
    for (int i = lane; i < HEAD_WIDTH / 4; i += 32) ((float4*)d)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncwarp();
    if (is_atom) d[HEAD_Q + taken * N_ATOMS + lane] = weight_q / M * is_weight[m] * (p - target);
    if (lane == 0) {
        *(float4*)(d + HEAD_WIDTH - FIGURES) = make_float4(is_weight[m] * entropy, mean, edges, q);
        priority[m] = entropy;
    }
}

extern "C" __global__ void c51_loss(ARGS) {
    __shared__ float logits[WARPS][N_ACTIONS * N_ATOMS], scratch[32 * FIGURES];
    const i64 own = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
    if (own < M)
        sample_loss(out, next_online, next_target, action, next_mask, rewards, n_used, terminal, is_weight, v_min, v_max,
                    weight_q, d_out, priority, isv, R, M, n, own, logits[threadIdx.x / 32]);
    if (!last_block()) return;

    float sums[FIGURES] = {}, square[1] = {};
#pragma unroll 4
    for (int m = threadIdx.x; m < M; m += blockDim.x) {
        const float4 row = *(const float4*)(d_out + (i64)(m + 1) * HEAD_WIDTH - FIGURES);
        sums[0] += row.x; sums[1] += row.y; sums[2] += row.z; sums[3] += row.w;
    }
    block_sums(sums, scratch);
    const float mean = sums[1] / M;
#pragma unroll 4
    for (int m = threadIdx.x; m < M; m += blockDim.x) {
        float4* row = (float4*)(d_out + (i64)(m + 1) * HEAD_WIDTH - FIGURES);
        square[0] += (row->y - mean) * (row->y - mean);
        *row = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    block_sums(square, scratch);
    if (threadIdx.x) return;
    isv[ISV_L_Q] = sums[0] / M;
    isv[ISV_TARGET_STD] = sqrtf(square[0] / M);
    isv[ISV_EDGE_MASS] = sums[2] / M;
    isv[ISV_Q_MEAN] = sums[3] / M;
}
