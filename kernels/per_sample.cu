// A warp a draw. Every block of threads sums the block sums into one running sum a thread (a chunk), so a draw is found by
// halving over the chunks, walking the blocks of one chunk, then 8 slots a lane of one block. The last block of threads
// then divides the weights by the largest.
#include "reduce.cuh"
#include "last_block.cuh"

#define THREADS 256
#define PER_LANE (PER_BLOCK / 32)

__device__ inline i64 running_sum(i64 value) {  // over the warp, this lane included
    for (int o = 1; o < 32; o *= 2) {
        const i64 before = __shfl_up_sync(~0u, value, o);
        if (threadIdx.x % 32 >= o) value += before;
    }
    return value;
}

extern "C" __global__ void per_sample(
    float* isv, const i64* step,
    const int* __restrict__ mass,   // [C]
    const i64* __restrict__ block,  // [G, 3]
    const u32 seed, const float beta0,
    int* slots, float* is_weight,  // [M]
    const int C, const int G, const int M) {
    __shared__ i64 running[THREADS], scratch[32];
    __shared__ float tops[32], shares[2];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int chunk = (G + THREADS - 1) / THREADS;
    const i64 now = step[0];
    i64 own = 0, squares = 0, count = 0;
    for (int g = t * chunk; g < min((t + 1) * chunk, G); ++g) {
        own += block[(i64)g * 3];
        squares += block[(i64)g * 3 + 1];
        count += block[(i64)g * 3 + 2];
    }
    squares = block_sum(squares, scratch);
    count = block_sum(count, scratch);
    i64 sum = running_sum(own);
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += scratch[w];
    running[t] = sum;
    if (t == THREADS - 1) {  // one thread, as divisions in double take a while
        const double done = fmin((double)now / BETA_STEPS, 1.0);
        shares[0] = (float)(beta0 + (1.0 - beta0) * done);
        shares[1] = (float)((double)max(count, (i64)1) / (double)max(sum, (i64)1));
    }
    __syncthreads();
    const i64 total = running[THREADS - 1];
    const float beta = shares[0], unit = shares[1];  // unit: N / sum of masses
    for (i64 m = (i64)blockIdx.x * (THREADS / 32) + warp; m < M; m += (i64)gridDim.x * (THREADS / 32)) {
        const i64 edge = m * total / M, span = (m + 1) * total / M - edge;
        const Philox word = philox(now, (u32)m, PURPOSE_REPLAY, seed);
        const u64 draw = ((u64)word.x0 << 32) | word.x1;
        const i64 point = edge + (i64)(draw % (u64)max(span, (i64)1));
        if (point >= total) {  // nothing can be drawn: all masses are 0
            if (lane == 0) { slots[m] = C - 1; is_weight[m] = powf(max(mass[C - 1], 1) * unit, -beta); }
            continue;
        }
        int low = 0, high = THREADS - 1;  // the first chunk whose running sum exceeds the point
        while (low < high) {
            const int middle = (low + high) / 2;
            if (running[middle] > point) high = middle; else low = middle + 1;
        }
        int g = low * chunk;
        i64 before = low ? running[low - 1] : 0;
        while (before + block[(i64)g * 3] <= point) before += block[(i64)g++ * 3];
        int masses[PER_LANE];
        i64 mine = 0;
        const i64 base = (i64)g * PER_BLOCK + lane * PER_LANE;
#pragma unroll
        for (int k = 0; k < PER_LANE; ++k) mine += masses[k] = base + k < C ? mass[base + k] : 0;
        i64 to = before + running_sum(mine);
        if (to > point && to - mine <= point) {  // one lane of the warp
            int slot = -1, held = 0;
            to -= mine;
#pragma unroll
            for (int k = 0; k < PER_LANE; ++k) {
                to += masses[k];
                if (slot < 0 && to > point) { slot = k; held = masses[k]; }
            }
            slots[m] = (int)base + slot;
            is_weight[m] = powf(held * unit, -beta);
        }
    }
    if (blockIdx.x == 0 && t == 0) {
        isv[ISV_PER_BETA] = beta;
        isv[ISV_PRIORITY_ESS] = (float)((double)total * total / fmax((double)squares * 65536.0 * count, 1.0));
    }

    if (!last_block()) return;
    float top = -INFINITY;
#pragma unroll 4
    for (int m = threadIdx.x; m < M; m += blockDim.x) top = fmaxf(top, is_weight[m]);
    top = block_max(top, tops);
#pragma unroll 4
    for (int m = threadIdx.x; m < M; m += blockDim.x) is_weight[m] /= top;
}
