// One warp a backtest, a lane an action. The running sum over the actions is done in order, as the reference does it.
#include "heads.cuh"

#define WARPS 4

extern "C" __global__ void policy_sample(
    const float* __restrict__ out,   // [B, HEAD_WIDTH]
    const u8* __restrict__ mask,     // [B, N_ACTIONS]
    const i64* __restrict__ step,    // [1]
    const u32 seed, const float eps,
    int* action, float* log_mu, float* value, float* entropy_frac, int* greedy, int* q_greedy, const int B) {
    __shared__ float logits[WARPS][N_ACTIONS * N_ATOMS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (i64 b = (i64)blockIdx.x * WARPS + warp; b < B; b += (i64)gridDim.x * WARPS) {
        const float* row = out + b * HEAD_WIDTH;
        const u8* allowed = mask + b * N_ACTIONS;
        // Loaded early: none of it depends on the rest.
        const bool valid = lane < N_ACTIONS && allowed[lane];
        const float logit = valid ? row[HEAD_POLICY + lane] : -INFINITY, v = row[HEAD_VALUE];
        const float uniform = uniform24(philox(step[0], (u32)b, PURPOSE_ACTION, seed).x0);
        const int best_q = best_action(row, allowed, logits[warp], 0.0f, 1.0f);

        const float shifted = logit - warp_max(logit);
        const float e = valid ? expf(shifted) : 0.0f, total = warp_sum(e), pi = e / total;
        const float n_valid = __popc(__ballot_sync(~0u, valid));
        const float entropy = -warp_sum(valid ? pi * (shifted - logf(total)) : 0.0f);
        const int best = first_largest(valid ? pi : -INFINITY);
        const float mu = valid ? (1.0f - eps) * pi + eps / n_valid : 0.0f;
        float running = 0.0f, sum = 0.0f;
#pragma unroll
        for (int a = 0; a < N_ACTIONS; ++a) {
            sum += __shfl_sync(~0u, mu, a);
            if (lane == a) running = sum;
        }
        const int drawn = __popc(__ballot_sync(~0u, lane < N_ACTIONS && running <= uniform * sum && running < sum));
        const float mu_drawn = __shfl_sync(~0u, mu, drawn);
        if (lane == 0) {
            action[b] = drawn;
            log_mu[b] = logf(mu_drawn);
            value[b] = v;
            entropy_frac[b] = entropy / logf(fmaxf(n_valid, 2.0f));
            greedy[b] = best;
            q_greedy[b] = best_q;
        }
        __syncwarp();  // logits are read by all before the next row's come
    }
}
