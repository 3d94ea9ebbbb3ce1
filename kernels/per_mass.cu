// A block of threads for a block of slots. Sums are of integers: any order gives the same bits.
#include "reduce.cuh"

extern "C" __global__ void per_mass(
    const float* __restrict__ isv, const float* __restrict__ priority,  // [C]
    int* __restrict__ mass,                                              // [C]
    i64* __restrict__ block,                                             // [G, 3]
    const int C, const int G) {
    __shared__ i64 scratch[3 * 32];
    const float alpha = isv[ISV_PER_ALPHA];
    for (int g = blockIdx.x; g < G; g += gridDim.x) {
        const i64 i = (i64)g * PER_BLOCK + threadIdx.x;
        const float p = i < C ? priority[i] : -1.0f;
        const bool drawable = p >= 0.0f;
        const float fixed = rintf(expf(alpha * logf(fmaxf(p, 0.0f) + PER_EPSILON)) * PER_SCALE);
        const int m = drawable ? (int)fmaxf(fminf(fixed, (float)PER_MAX_MASS), 1.0f) : 0;
        if (i < C) mass[i] = m;
        const i64 root = (m + 128) >> 8;
        i64 sums[3] = {m, root * root, drawable};
        block_sums(sums, scratch);
        if (threadIdx.x == 0)
            for (int k = 0; k < 3; ++k) block[(i64)g * 3 + k] = sums[k];
    }
}
