// One warp a backtest: lanes hold actions for the policy, atoms for the Q head. The running sum over 11 actions is done
// by one lane in order, as the reference does it.
#include "reduce.cuh"

extern "C" __global__ void policy_sample(
    const float* __restrict__ out,   // [B, HEAD_WIDTH]
    const u8* __restrict__ mask,     // [B, N_ACTIONS]
    const i64* __restrict__ step,    // [1]
    const u32 seed, const float eps,
    int* action, float* log_mu, float* value, float* entropy_frac, int* greedy, int* q_greedy, const int B) {
    __shared__ float mu_of[8][N_ACTIONS], q_of[8][N_ACTIONS], pi_of[8][N_ACTIONS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (i64 b = (i64)blockIdx.x * 8 + warp; b < B; b += (i64)gridDim.x * 8) {
        const float* row = out + b * HEAD_WIDTH;
        const bool valid = lane < N_ACTIONS && mask[b * N_ACTIONS + lane];
        const float logit = valid ? row[HEAD_POLICY + lane] : -INFINITY;
        const float shifted = logit - warp_max(logit);
        const float e = valid ? expf(shifted) : 0.0f;
        const float total = warp_sum(e);
        const float n_valid = warp_sum(valid ? 1.0f : 0.0f);
        const float pi = e / total;
        const float entropy = -warp_sum(valid ? pi * (shifted - logf(total)) : 0.0f);
        if (lane < N_ACTIONS) {
            pi_of[warp][lane] = pi;
            mu_of[warp][lane] = valid ? (1.0f - eps) * pi + eps / n_valid : 0.0f;
        }
        for (int a = 0; a < N_ACTIONS; ++a) {
            const float q = lane < N_ATOMS ? row[HEAD_Q + a * N_ATOMS + lane] : -INFINITY;
            const float top = warp_max(q);
            const float w = lane < N_ATOMS ? expf(q - top) : 0.0f;
            const float mean = warp_sum(lane * w) / warp_sum(w);
            if (lane == 0) q_of[warp][a] = mean;
        }
        __syncwarp();
        if (lane == 0) {
            float running[N_ACTIONS], sum = 0.0f, best = -INFINITY, best_q = -INFINITY;
            int g = 0, qg = 0, drawn = 0;
            for (int a = 0; a < N_ACTIONS; ++a) {
                running[a] = sum += mu_of[warp][a];
                if (!mask[b * N_ACTIONS + a]) continue;
                if (pi_of[warp][a] > best) { best = pi_of[warp][a]; g = a; }
                if (q_of[warp][a] > best_q) { best_q = q_of[warp][a]; qg = a; }
            }
            const float u = uniform24(philox(step[0], (u32)b, PURPOSE_ACTION, seed).x0) * sum;
            for (int a = 0; a < N_ACTIONS; ++a) drawn += running[a] <= u && running[a] < sum;
            action[b] = drawn;
            log_mu[b] = logf(mu_of[warp][drawn]);
            value[b] = row[HEAD_VALUE];
            entropy_frac[b] = entropy / logf(fmaxf(n_valid, 2.0f));
            greedy[b] = g;
            q_greedy[b] = qg;
        }
        __syncwarp();
    }
}
