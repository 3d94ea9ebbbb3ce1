// One block: six sums over the lanes, then one thread writes the ratios. Runs last in a step, and advances the clock.
#include "reduce.cuh"

extern "C" __global__ void signals(
    const i8* __restrict__ valid, const float* __restrict__ reward, const i8* __restrict__ ordered,  // [B]
    const i8* __restrict__ closed, const i64* __restrict__ closed_pnl, const int* __restrict__ closed_rows,
    float* sums, i64* trades, i64* step, float* isv, const int B) {
    __shared__ i64 scratch[5 * 32];
    __shared__ double scratch_real[32];
    float s[N_SUMS];
    for (int i = 0; i < N_SUMS; ++i) s[i] = sums[i];
    i64 count[5] = {};  // as SUM_TRADES to SUM_HOLDS
    double earned = 0.0;
    for (int b = threadIdx.x; b < B; b += blockDim.x) {
        const bool lives = valid[b], ends = closed[b];
        count[SUM_TRADES] += ends;
        count[SUM_ROWS] += ends ? closed_rows[b] : 0;
        count[SUM_WINS] += ends && closed_pnl[b] > 0;
        count[SUM_DECISIONS] += lives;
        count[SUM_HOLDS] += lives && !ordered[b];
        earned += lives ? reward[b] : 0.0f;
    }
    block_sums(count, scratch);
    earned = block_sum(earned, scratch_real);
    if (threadIdx.x) return;
    for (int i = 0; i < N_SUMS; ++i)
        sums[i] = s[i] = s[i] * (float)DECAY + (i == SUM_REWARD ? (float)earned : (float)count[min(i, 4)]);
    trades[0] += count[SUM_TRADES];
    step[0] += 1;
    if (s[SUM_TRADES] > 0.0f) {
        isv[ISV_HOLD_ROWS] = s[SUM_TRADES] >= (float)MIN_TRADES ? s[SUM_ROWS] / s[SUM_TRADES] : 0.0f;
        isv[ISV_WR] = s[SUM_WINS] / s[SUM_TRADES];
    }
    if (s[SUM_DECISIONS] > 0.0f) {
        isv[ISV_HOLD_PCT] = 100.0f * s[SUM_HOLDS] / s[SUM_DECISIONS];
        isv[ISV_REWARD_MEAN] = s[SUM_REWARD] / s[SUM_DECISIONS];
    }
    isv[ISV_TRADES] = (float)trades[0];
}
