// One block: the mean and the deviation need every lane, and without scratch only a block can wait for all of its own.
// It runs once a rollout (T steps): 32 x 1024 rows are 0.6 MB through one SM, some 20 us, under 1 us a step.
// A thread runs its lanes backward in time; lanes are neighbours in memory, so the loads coalesce.
#include "reduce.cuh"

extern "C" __global__ void gae(
    const float* __restrict__ isv,
    const float* __restrict__ reward,  // [2, TM, B], as value, valid, done, advantage, returns
    const float* __restrict__ value, const i8* __restrict__ valid, const i8* __restrict__ done,
    const float* __restrict__ bootstrap,  // [B]
    const int* __restrict__ length, const i64* __restrict__ active, const float lam,
    float* __restrict__ advantage, float* __restrict__ returns, const int TM, const int B) {
    __shared__ double scratch[32];
    const int buffer = (int)(1 - active[0]);
    const int rows = length[buffer];
    const i64 first = (i64)buffer * TM * B;
    const float gamma = isv[ISV_GAMMA], scale = isv[ISV_REWARD_SCALE], carry = gamma * lam;
    double sum = 0.0, count = 0.0;  // double: two passes over T * B values keep their digits
    for (int b = threadIdx.x; b < B; b += blockDim.x) {
        float carried = 0.0f, next_value = bootstrap[b];
#pragma unroll 4
        for (int t = rows - 1; t >= 0; --t) {
            const i64 i = first + (i64)t * B + b;
            const float v = value[i];
            const int end = done[i];
            const bool live = valid[i] != 0;
            const float delta = scale * reward[i] + (end != 2 ? gamma * next_value : 0.0f) - v;
            carried = live ? delta + (end == 0 ? carry * carried : 0.0f) : 0.0f;
            advantage[i] = carried;
            returns[i] = carried + v;
            next_value = v;
            sum += carried;
            count += live;
        }
    }
    count = fmax(block_sum(count, scratch), 1.0);
    const double mean = block_sum(sum, scratch) / count;
    double squares = 0.0;
    for (int b = threadIdx.x; b < B; b += blockDim.x)  // each thread reads back what it wrote itself
#pragma unroll 4
        for (int t = 0; t < rows; ++t) {
            const i64 i = first + (i64)t * B + b;
            const double centred = valid[i] ? advantage[i] - mean : 0.0;
            squares += centred * centred;
        }
    const double scale_of = 1.0 / (sqrt(block_sum(squares, scratch) / count) + STD_FLOOR);
    for (int b = threadIdx.x; b < B; b += blockDim.x)
#pragma unroll 4
        for (int t = 0; t < rows; ++t) {
            const i64 i = first + (i64)t * B + b;
            advantage[i] = valid[i] ? (float)((advantage[i] - mean) * scale_of) : 0.0f;
        }
}
