// One block, so that a barrier orders reading the cursor and moving it. An evaluation has some hundred lanes.
#include "common.cuh"

#define KEEP(name) log_##name[at * B + b] = name[b]

extern "C" __global__ void eval_record(
    i64* cursor,
    const int* __restrict__ row, const i8* __restrict__ valid, const i8* __restrict__ done,  // [B]
    const i64* __restrict__ cash, const i64* __restrict__ equity, const int* __restrict__ position,
    const int* __restrict__ target, const int* __restrict__ filled, const i64* __restrict__ fee_paid,
    const i64* __restrict__ spread_paid, const i8* __restrict__ action_done,
    const i8* __restrict__ ordered, const int* __restrict__ greedy, const int* __restrict__ q_greedy,
    const float* __restrict__ entropy_frac,
    int* __restrict__ log_row, i8* __restrict__ log_valid, i8* __restrict__ log_done,  // [T, B]
    i64* __restrict__ log_cash, i64* __restrict__ log_equity, int* __restrict__ log_position,
    int* __restrict__ log_target, int* __restrict__ log_filled, i64* __restrict__ log_fee_paid,
    i64* __restrict__ log_spread_paid, i8* __restrict__ log_action_done, i8* __restrict__ log_ordered,
    int* __restrict__ log_greedy, int* __restrict__ log_q_greedy, float* __restrict__ log_entropy_frac,
    const int B, const int T) {
    const i64 at = cursor[0];
    for (int b = threadIdx.x; b < B; b += blockDim.x) {
        KEEP(row);
        KEEP(valid);
        KEEP(done);
        KEEP(cash);
        KEEP(equity);
        KEEP(position);
        KEEP(target);
        KEEP(filled);
        KEEP(fee_paid);
        KEEP(spread_paid);
        KEEP(action_done);
        KEEP(ordered);
        KEEP(greedy);
        KEEP(q_greedy);
        KEEP(entropy_frac);
    }
    __syncthreads();
    if (threadIdx.x == 0) cursor[0] = at + 1;
}
