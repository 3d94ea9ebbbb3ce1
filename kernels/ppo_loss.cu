// A warp a rollout row; every block counts the rows of the means for itself. Then the last block sums what the bus gets, in
// a fixed order. From one to the other the figures of a row, already weighted by its share in the means, travel in the
// last padding columns of its d_out, which the sum leaves at zero as the table says.
#include "reduce.cuh"
#include "last_block.cuh"

#define ARGS                                                                                                         \
    const float* __restrict__ out, const int* __restrict__ action, const float* __restrict__ log_mu_old,             \
        const float* __restrict__ advantage, const float* __restrict__ returns, const float* __restrict__ value_old, \
        const u8* __restrict__ mask, const i8* __restrict__ valid, const i8* __restrict__ aux_label, const float eps, \
        const float value_clip, const float weight_policy, const float weight_value, const float weight_aux,         \
        float *d_out, float *isv, const int R, const int M

#define WARPS 8
#define FIGURES 8  // l_pi, entropy, its fraction, KL, clipped, 2 l_v, value, l_aux
// Lanes hold the columns from the policy's on: actions, value, directions.
#define VALUE_LANE (HEAD_VALUE - HEAD_POLICY)
#define AUX_LANE (HEAD_AUX - HEAD_POLICY)
#define LANES (HEAD_USED - HEAD_POLICY)
static_assert(LANES <= 32, "a warp holds a row");
static_assert(HEAD_WIDTH % 4 == 0 && HEAD_WIDTH - HEAD_USED >= FIGURES, "no room for the figures");

// Row m, by one warp; n_live and n_known rows count in the means.
__device__ inline void row_loss(ARGS, const i64 m, const int n_live, const int n_known) {
    const int lane = threadIdx.x % 32;
    const float clip = isv[ISV_PPO_CLIP], entropy_coef = isv[ISV_ENTROPY_COEF];
    const bool live = valid[m], known = live && aux_label[m] >= 0;
    // Rows that do not count may hold anything: they get ratio 1, no errors, and share 0.
    const float share = live ? 1.0f / max(n_live, 1) : 0.0f, aux_share = known ? 1.0f / max(n_known, 1) : 0.0f;
    const i64 row = (i64)(R - M + m) * HEAD_WIDTH;
    const float x = lane < LANES ? out[row + HEAD_POLICY + lane] : 0.0f;

    const bool allowed = lane < N_ACTIONS && mask[m * N_ACTIONS + lane];
    const float n_valid = __popc(__ballot_sync(~0u, allowed));
    const float shifted = x - warp_max(allowed ? x : -INFINITY);
    const float e = allowed ? expf(shifted) : 0.0f, total = warp_sum(e), pi = e / total;
    const float log_pi = allowed ? shifted - logf(total) : 0.0f, entropy = -warp_sum(pi * log_pi);
    const int taken = action[m];
    const float pi_a = __shfl_sync(~0u, pi, taken);
    const float mu_a = live ? (1.0f - eps) * pi_a + eps / n_valid : 1.0f;
    const float log_ratio = live ? logf(mu_a) - log_mu_old[m] : 0.0f, ratio = expf(log_ratio);
    const float gain = live ? advantage[m] : 0.0f;
    const float free = -gain * ratio, held = -gain * fminf(fmaxf(ratio, 1.0f - clip), 1.0f + clip);
    // Where the clipped branch is the larger one, the ratio lies outside and moves nothing.
    const float d_log_mu = (free >= held ? free : 0.0f) * (1.0f - eps) * pi_a / mu_a;
    const float d_policy = pi * (entropy_coef * (log_pi + entropy) - d_log_mu) + (lane == taken ? d_log_mu : 0.0f);

    const float value = __shfl_sync(~0u, x, VALUE_LANE), old = value_old[m];
    const float error = live ? value - returns[m] : 0.0f;
    const float held_error = live ? fminf(fmaxf(value, old - value_clip), old + value_clip) - returns[m] : 0.0f;
    const float free2 = error * error, held2 = held_error * held_error;
    const float d_value = free2 >= held2 ? error : 0.0f;

    const bool is_aux = lane >= AUX_LANE && lane < AUX_LANE + N_AUX;
    const int label = known ? aux_label[m] : 0;
    const float aux_shifted = x - warp_max(is_aux ? x : -INFINITY);
    const float aux_e = is_aux ? expf(aux_shifted) : 0.0f, aux_total = warp_sum(aux_e);
    const float d_aux = aux_e / aux_total - (lane - AUX_LANE == label ? 1.0f : 0.0f);
    const float l_aux = logf(aux_total) - __shfl_sync(~0u, aux_shifted, AUX_LANE + label);

    float* d = d_out + row;
    for (int i = lane; i < HEAD_WIDTH / 4; i += 32) ((float4*)d)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncwarp();
    if (lane < LANES)
        d[HEAD_POLICY + lane] = lane < N_ACTIONS ? weight_policy * (d_policy * share)
                                : is_aux ? weight_aux * (d_aux * aux_share) : weight_value * (d_value * share);
    if (lane == 0) {
        float4* figures = (float4*)(d + HEAD_WIDTH - FIGURES);
        figures[0] = make_float4(fmaxf(free, held) * share, entropy * share, entropy / logf(fmaxf(n_valid, 2.0f)) * share,
                                 (ratio - 1.0f - log_ratio) * share);
        figures[1] = make_float4((fabsf(ratio - 1.0f) > clip ? 1.0f : 0.0f) * share, fmaxf(free2, held2) * share,
                                 value * share, l_aux * aux_share);
    }
}

extern "C" __global__ void ppo_loss(ARGS) {
    __shared__ int counted[32 * 2];
    __shared__ float scratch[32 * FIGURES];
    int n[2] = {};  // rows that count, those with a label among them
#pragma unroll 4
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        const int counts = valid[i] != 0, labelled = aux_label[i] >= 0;
        n[0] += counts;
        n[1] += counts & labelled;
    }
    block_sums(n, counted);
    const i64 own = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
    if (own < M)
        row_loss(out, action, log_mu_old, advantage, returns, value_old, mask, valid, aux_label, eps, value_clip,
                 weight_policy, weight_value, weight_aux, d_out, isv, R, M, own, n[0], n[1]);
    if (!last_block()) return;

    float sums[FIGURES] = {};
#pragma unroll 4
    for (int m = threadIdx.x; m < M; m += blockDim.x) {
        float4* row = (float4*)(d_out + (i64)(R - M + m + 1) * HEAD_WIDTH - FIGURES);
        const float4 a = row[0], b = row[1];
        sums[0] += a.x; sums[1] += a.y; sums[2] += a.z; sums[3] += a.w;
        sums[4] += b.x; sums[5] += b.y; sums[6] += b.z; sums[7] += b.w;
        row[0] = row[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    block_sums(sums, scratch);
    if (threadIdx.x) return;
    isv[ISV_L_PI] = sums[0];
    isv[ISV_ENTROPY] = sums[1];
    isv[ISV_ENTROPY_FRAC] = sums[2];
    isv[ISV_APPROX_KL] = sums[3];
    isv[ISV_CLIP_FRAC] = sums[4];
    isv[ISV_L_V] = sums[5] / 2.0f;
    isv[ISV_VALUE_MEAN] = sums[6];
    isv[ISV_L_AUX] = sums[7];
}
