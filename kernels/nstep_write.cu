// A warp a lane and part, every thread reading the step count as it was; the last block, after all have, advances it. The
// parts (grid row: the step into the ring, s, the state of s', the rest of s') don't wait for each other: the step just
// done is read from where it lies, never from the ring row that it is being written to.
#include "copy.cuh"
#include "last_block.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) nstep_write(
    const int *row, const float *private, const float *h_prev, const u8 *mask, const int *action,
    const float *reward, const i8 *valid, const i8 *done, int *ring_row, float *ring_private,
    float *ring_h_prev, u8 *ring_mask, int *ring_action, float *ring_reward, i8 *ring_valid, i8 *ring_done,
    i64 *pushed, const float *max_priority, int *to_row, float *to_private, float *to_h_prev, int *to_action,
    float *to_rewards, int *to_n_used, u8 *to_terminal, int *to_next_row, float *to_next_private,
    float *to_next_h_prev, u8 *to_next_mask, float *priority, const int B, const int P, const int H,
    const int A, const int n1, const int C, const int n) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, part = blockIdx.y;
    const i64 step = pushed[0];
    const int at = (int)(step % n1);
    const int start = (int)((step - n + n1) % n1);  // never `at`: the ring holds one row more than n
    const i64 first = step < n ? 0 : (step - n) * B % C;  // B divides C, so the block never wraps
    const int rows = part > 0 && step < n ? 0 : B;
    for (i64 b = (i64)blockIdx.x * warps + threadIdx.x / 32; b < rows; b += (i64)gridDim.x * warps) {
        const i64 here = (i64)at * B + b, from = (i64)start * B + b, slot = first + b;
        if (part == 0) {
            copy_row(ring_h_prev + here * H, h_prev + b * H, H, lane, 32);
            copy_row(ring_private + here * P, private + b * P, P, lane, 32);
            copy_row(ring_mask + here * A, mask + b * A, A, lane, 32);
            if (lane == 0) {
                ring_row[here] = row[b];
                ring_action[here] = action[b];
                ring_reward[here] = reward[b];
                ring_valid[here] = valid[b];
                ring_done[here] = done[b];
            }
            continue;
        }
        if (part == 1) {
            copy_row(to_h_prev + slot * H, ring_h_prev + from * H, H, lane, 32);
            copy_row(to_private + slot * P, ring_private + from * P, P, lane, 32);
            if (lane == 0) {
                to_row[slot] = ring_row[from];
                to_action[slot] = ring_action[from];
                priority[slot] = ring_valid[from] ? max_priority[0] : (float)NEVER;
            }
            continue;
        }
        // Lane i of the warp looks at the i-th of the n <= 32 steps from `start` on.
        const i64 j = (i64)((start + lane) % n1) * B + b;
        const int end = lane < n ? ring_done[j] : 0;
        const u32 ends = __ballot_sync(~0u, end != 0);
        const int used = ends ? __ffs(ends) : n;
        const bool staged = used == n;
        const i64 last = staged ? b : (i64)((start + used) % n1) * B + b;
        if (part == 2) {
            copy_row(to_next_h_prev + slot * H, (staged ? h_prev : ring_h_prev) + last * H, H, lane, 32);
            continue;
        }
        copy_row(to_next_private + slot * P, (staged ? private : ring_private) + last * P, P, lane, 32);
        copy_row(to_next_mask + slot * A, (staged ? mask : ring_mask) + last * A, A, lane, 32);
        if (lane < n) to_rewards[slot * n + lane] = lane < used ? ring_reward[j] : 0.0f;
        if (lane == used - 1) {
            to_n_used[slot] = used;
            to_terminal[slot] = end == 2;
            to_next_row[slot] = (staged ? row : ring_row)[last];
        }
    }
    if (last_block() && threadIdx.x == 0) pushed[0] = step + 1;
}
