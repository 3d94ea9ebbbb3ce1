// A block computes ROWS rows of the stem's gradients, or copies as many of out_proj's. It reads all of dfolded, 16 lanes a row
// of it: its half warps take the terms of every sum in turn, AHEAD at a time on their way, and meet once at the end.
#include "copy.cuh"
#include "reduce.cuh"
#include "stem.cuh"

constexpr int ROWS = 4, COLUMNS = 64, WARPS = 16, HALVES = 2 * WARPS, AHEAD = 6;  // a lane: ROWS x 4 values
static_assert(ROWS == 4 && COLUMNS == 64, "what the lanes are laid out for");

// sum[i] += left_i right, right: four columns.
__device__ inline void add_outer(float4 (&sum)[ROWS], float4 left, float4 right) {
    add_times(sum[0], left.x, right);
    add_times(sum[1], left.y, right);
    add_times(sum[2], left.z, right);
    add_times(sum[3], left.w, right);
}

// Both halves of the warp get their sum.
__device__ inline float4 both_halves(float4 v) {
    return v + make_float4(__shfl_xor_sync(~0u, v.x, 16), __shfl_xor_sync(~0u, v.y, 16), __shfl_xor_sync(~0u, v.z, 16),
                           __shfl_xor_sync(~0u, v.w, 16));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) stem_weights_bwd(
    const float* __restrict__ in_proj,   // [E, D]
    const float* __restrict__ norm,      // [D]
    const float* __restrict__ embed,     // [D, F]
    const float* __restrict__ bias,      // [D]
    const float* __restrict__ dfolded,   // [E, X]
    const float* __restrict__ dwide,     // [D, Y]
    const float* __restrict__ gram_sum,  // [Q], rows of X
    float* __restrict__ dembed,          // [D, F]
    float* __restrict__ dbias,           // [D]
    float* __restrict__ dnorm,           // [D]
    float* __restrict__ dout_proj,       // [D, DI]
    const int E, const int D, const int F, const int X, const int Y, const int Q, const int DI) {
    __shared__ float4 sums[WARPS][2][ROWS][COLUMNS / 4];  // of in_proj^T dfolded, and of We~ gram_sum
    __shared__ float through_norm[WARPS];
    const int groups = (D + ROWS - 1) / ROWS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (blockIdx.x >= groups) {
        const int d = (blockIdx.x - groups) * ROWS + threadIdx.x / 128;
        if (d < D) copy_row(dout_proj + (i64)d * DI, dwide + (i64)d * Y, DI, threadIdx.x % 128, 128);
        return;
    }
    const Stem stem = {embed, bias, D, F};
    const int d0 = blockIdx.x * ROWS, half = 2 * warp + lane / 16;
    const int d = d0 + threadIdx.x / COLUMNS;  // of the first threads, one for each value
    float scale_gradient = 0.0f;
    for (int c0 = 0; c0 < X; c0 += COLUMNS) {
        const int c = c0 + lane % 16 * 4, x = c0 + threadIdx.x % COLUMNS;
        const bool mine = threadIdx.x < ROWS * COLUMNS && d < D && x <= F;
        const float skip = mine ? dwide[(i64)d * Y + DI + x] : 0.0f, weight = mine ? stem.at(d, x) : 0.0f;
        const float scale = mine ? norm[d] : 0.0f;
        float4 scaled[ROWS], spread[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) scaled[i] = spread[i] = zeros();
        for (int e = half; e < E; e += HALVES * AHEAD) {
            float4 left[AHEAD], right[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int k = e + j * HALVES;
                left[j] = four_of(in_proj + (i64)k * D, d0, k < E ? D : 0, D % 4 == 0);
                right[j] = four_of(dfolded + (i64)k * X, c, k < E ? X : 0, true);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) add_outer(scaled, left[j], right[j]);
        }
        for (int k = half; k <= F; k += HALVES) {
            const float4 left = make_float4(stem.at(d0, k), d0 + 1 < D ? stem.at(d0 + 1, k) : 0.0f,
                                            d0 + 2 < D ? stem.at(d0 + 2, k) : 0.0f, d0 + 3 < D ? stem.at(d0 + 3, k) : 0.0f);
            add_outer(spread, left, four_of(gram_sum + (i64)k * X, c, X, true));
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float4 a = both_halves(scaled[i]), b = both_halves(spread[i]);
            sums[warp][lane / 16][i][lane % 16] = lane < 16 ? a : b;
        }
        __syncthreads();
        if (mine) {
            const float* from = (const float*)sums + threadIdx.x;
            float a = 0.0f, b = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                a += from[2 * w * ROWS * COLUMNS];
                b += from[(2 * w + 1) * ROWS * COLUMNS];
            }
            const float gradient = scale * a + skip - b / D;
            if (x < F) dembed[(i64)d * F + x] = gradient;
            else dbias[d] = gradient;
            scale_gradient += a * weight;
        }
        __syncthreads();  // the next columns' sums come to the same place
    }
    scale_gradient = warp_sum(scale_gradient);
    if (lane == 0) through_norm[warp] = scale_gradient;
    __syncthreads();
    const int t = threadIdx.x;
    if (t < ROWS && d0 + t < D) dnorm[d0 + t] = through_norm[2 * t] + through_norm[2 * t + 1];
}
