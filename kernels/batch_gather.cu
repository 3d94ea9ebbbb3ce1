// A warp a part (grid row) of a row of the joint batch, whose first M rows come from replay, the others from the rollout.
// Few bytes (2.5 MB at M = 1024, H = 128) from scattered rows: what counts is that all are asked for at once, so that no
// warp waits for one array before it asks for the next.
#include "copy.cuh"

extern "C" __global__ void __launch_bounds__(256, 8) batch_gather(
    const int* __restrict__ slots, const int* __restrict__ index,  // [M, ...]
    const int* __restrict__ row, const float* __restrict__ private,  // [C, ...]
    const float* __restrict__ h_prev, const int* __restrict__ action,
    const float* __restrict__ rewards, const int* __restrict__ n_used,
    const u8* __restrict__ terminal, const int* __restrict__ next_row,
    const float* __restrict__ next_private, const float* __restrict__ next_h_prev,
    const u8* __restrict__ next_mask,
    const int* __restrict__ roll_row, const float* __restrict__ roll_private,  // [2, TM, B, ...]
    const float* __restrict__ roll_h_prev, const int* __restrict__ roll_action,
    const float* __restrict__ roll_log_mu, const u8* __restrict__ roll_mask,
    const i8* __restrict__ roll_valid, const float* __restrict__ roll_value,
    const float* __restrict__ roll_advantage, const float* __restrict__ roll_returns,
    const i8* __restrict__ market_label,  // [N, ...]
    int* __restrict__ to_row, float* __restrict__ to_private, float* __restrict__ to_h_prev,  // [M2, ...]
    int* __restrict__ to_action, float* __restrict__ to_rewards, int* __restrict__ to_n_used,  // [M, ...]
    u8* __restrict__ to_terminal, int* __restrict__ to_next_row,
    float* __restrict__ to_next_private, float* __restrict__ to_next_h_prev,
    u8* __restrict__ to_next_mask, int* __restrict__ served_action,
    float* __restrict__ served_log_mu, u8* __restrict__ served_mask,
    i8* __restrict__ served_valid, float* __restrict__ served_value,
    float* __restrict__ served_advantage, float* __restrict__ served_returns,
    i8* __restrict__ served_aux_label,
    const int M, const int C, const int P, const int H, const int n, const int A, const int TM, const int B,
    const int N, const int M2) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, part = blockIdx.y;
    for (i64 r = (i64)blockIdx.x * warps + threadIdx.x / 32; r < M2; r += (i64)gridDim.x * warps) {
        const bool replayed = r < M;
        const i64 m = replayed ? r : r - M;
        if (part > 3 && !replayed) return;
        const i64 at = replayed ? slots[m] : index[m];
        if (part == 0) {
            copy_row(to_h_prev + r * H, (replayed ? h_prev : roll_h_prev) + at * H, H, lane, 32);
        } else if (part == 1) {
            copy_row(to_private + r * P, (replayed ? private : roll_private) + at * P, P, lane, 32);
        } else if (part == 2) {
            if (replayed) copy_row(to_next_mask + m * A, next_mask + at * A, A, lane, 32);
            else copy_row(served_mask + m * A, roll_mask + at * A, A, lane, 32);
        } else if (part == 3 && replayed) {
            for (int i = lane; i < n; i += 32) to_rewards[m * n + i] = rewards[at * n + i];
            if (lane == 0) {
                to_row[r] = row[at];
                to_action[m] = action[at];
                to_n_used[m] = n_used[at];
                to_terminal[m] = terminal[at];
                to_next_row[m] = next_row[at];
            }
        } else if (part == 3) {
            if (lane == 0) {
                const int seen = roll_row[at];
                to_row[r] = seen;
                served_aux_label[m] = market_label[seen];
                served_action[m] = roll_action[at];
                served_log_mu[m] = roll_log_mu[at];
                served_valid[m] = roll_valid[at];
                served_value[m] = roll_value[at];
                served_advantage[m] = roll_advantage[at];
                served_returns[m] = roll_returns[at];
            }
        } else if (part == 4) {
            copy_row(to_next_h_prev + m * H, next_h_prev + at * H, H, lane, 32);
        } else {
            copy_row(to_next_private + m * P, next_private + at * P, P, lane, 32);
        }
    }
}
