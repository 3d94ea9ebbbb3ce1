// Every thread reads the counters as they were; the last block, after all have, moves them. The parts (grid row: recurrent
// state, the other rows, what is one value a lane) don't wait for each other.
#include "copy.cuh"
#include "last_block.cuh"

extern "C" __global__ void rollout_write(
    const int *row, const float *private, const float *h_prev, const u8 *mask, const float *value,
    const int *action, const float *log_mu, const float *reward, const i8 *valid, const i8 *done,
    const int *length, i64 *active, i64 *filled, float *bootstrap, int *to_row, float *to_private,
    float *to_h_prev, u8 *to_mask, float *to_value, int *to_action, float *to_log_mu, float *to_reward,
    i8 *to_valid, i8 *to_done, const int B, const int P, const int H, const int A, const int TM) {
    const bool full = filled[0] == length[active[0]];
    const i64 buffer = full ? 1 - active[0] : active[0];
    const i64 at = (buffer * TM + (full ? 0 : filled[0])) * B;  // first lane's place in the [2, TM, B] arrays
    const i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x, threads = (i64)gridDim.x * blockDim.x;
    if (blockIdx.y == 0) copy_row(to_h_prev + at * H, h_prev, (i64)B * H, t, threads);
    if (blockIdx.y == 1) {
        copy_row(to_private + at * P, private, (i64)B * P, t, threads);
        copy_row(to_mask + at * A, mask, (i64)B * A, t, threads);
    }
    if (blockIdx.y == 2) FOR_EACH(b, B) {
        to_row[at + b] = row[b];
        to_value[at + b] = value[b];
        to_action[at + b] = action[b];
        to_log_mu[at + b] = log_mu[b];
        to_reward[at + b] = reward[b];
        to_valid[at + b] = valid[b];
        to_done[at + b] = done[b];
        if (full) bootstrap[b] = value[b];
    }
    if (!last_block() || threadIdx.x) return;
    active[0] = buffer;
    filled[0] = full ? 1 : filled[0] + 1;
}
