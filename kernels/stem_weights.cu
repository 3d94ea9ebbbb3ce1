// A block computes a tile of `folded` or of `gram`, ROWS x COLUMNS values, or copies a few rows. A tile's warps take DEPTH of
// the D terms of every sum in turn, each with all of its loads on their way at once, and meet once at the end.
#include "copy.cuh"
#include "stem.cuh"

constexpr int WARPS = 8, PITCH = DEPTH + 4;                       // 4: eight lanes read four rows at one column
constexpr int WARP_FLOATS = ROWS * PITCH + DEPTH * COLUMNS;       // of shared memory
constexpr int LANE_ROWS = ROWS / 4;                               // a lane has rows lane / 8 + 4 i, columns lane % 8 * 4 ...
static_assert(COLUMNS == 32 && DEPTH == 32 && ROWS % 4 == 0 && ROWS * COLUMNS <= WARP_FLOATS, "what the lanes are laid out for");

// GRAM: the left factor is We~ transposed, else in_proj diag(norm) with n rows.
template <bool GRAM>
__device__ inline void tile(
    const float* in_proj, const float* norm, const Stem& stem, int row0, int n, int column0, int X, float* out, float* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 8, piece = lane % 8 * 4, D = stem.D;
    float *a = shared + warp * WARP_FLOATS, *b = a + ROWS * PITCH;  // [ROWS, PITCH], [DEPTH, COLUMNS]
    float4 sum[LANE_ROWS];
#pragma unroll
    for (int i = 0; i < LANE_ROWS; ++i) sum[i] = zeros();
    for (int k0 = warp * DEPTH; k0 < D; k0 += WARPS * DEPTH) {
        float4 left[LANE_ROWS], right[DEPTH / 4];
#pragma unroll
        for (int j = 0; j < LANE_ROWS; ++j) {
            if (GRAM) {
                left[j] = stem.four(k0 + lane, row0 + 4 * j);
            } else {
                const int row = row0 + 4 * j + line;
                left[j] = four_of(in_proj + (i64)row * D, k0 + piece, row < n ? D : 0, D % 4 == 0);
            }
        }
#pragma unroll
        for (int j = 0; j < DEPTH / 4; ++j) right[j] = stem.four(k0 + 4 * j + line, column0 + piece);
        const float4 weight = GRAM ? make_float4(1.0f, 1.0f, 1.0f, 1.0f) : four_of(norm, k0 + piece, D, D % 4 == 0);
        __syncwarp();  // what a warp overwrites here, it has read
#pragma unroll
        for (int j = 0; j < LANE_ROWS; ++j) {
            if (GRAM) {
                float* to = a + 4 * j * PITCH + lane;
                to[0] = left[j].x; to[PITCH] = left[j].y; to[2 * PITCH] = left[j].z; to[3 * PITCH] = left[j].w;
            } else {
                *(float4*)(a + (4 * j + line) * PITCH + piece) = left[j] * weight;
            }
        }
#pragma unroll
        for (int j = 0; j < DEPTH / 4; ++j) *(float4*)(b + (4 * j + line) * COLUMNS + piece) = right[j];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 4) {
            float4 rows[LANE_ROWS];
#pragma unroll
            for (int i = 0; i < LANE_ROWS; ++i) rows[i] = *(const float4*)(a + (4 * i + line) * PITCH + k);
            const float4 *from = (const float4*)(b + k * COLUMNS + piece);
            const float4 b0 = from[0], b1 = from[COLUMNS / 4], b2 = from[2 * COLUMNS / 4], b3 = from[3 * COLUMNS / 4];
#pragma unroll
            for (int i = 0; i < LANE_ROWS; ++i) {
                add_times(sum[i], rows[i].x, b0);
                add_times(sum[i], rows[i].y, b1);
                add_times(sum[i], rows[i].z, b2);
                add_times(sum[i], rows[i].w, b3);
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < LANE_ROWS; ++i) *(float4*)(a + (4 * i + line) * COLUMNS + piece) = sum[i];
    __syncthreads();
    for (int t = threadIdx.x; t < ROWS * COLUMNS / 4; t += blockDim.x) {
        const int row = row0 + t / (COLUMNS / 4), column = column0 + t % (COLUMNS / 4) * 4;
        float4 total = ((const float4*)shared)[t];
        for (int w = 1; w < WARPS; ++w) total = total + ((const float4*)(shared + w * WARP_FLOATS))[t];
        if (row < n && column < X) *(float4*)(out + (i64)row * X + column) = total;
    }
}

// Row d of `wide` and of `scaled` by 64 threads, of which this is number t.
__device__ inline void copy_weights(
    const float* out_proj, const float* norm, const Stem& stem, int d, int DI, int X, int Y, float* scaled, float* wide, int t) {
    copy_row(wide + (i64)d * Y, out_proj + (i64)d * DI, DI, t, 64);
    for (int c = t; c < X; c += 64) {
        const float value = stem.at(d, c);
        wide[(i64)d * Y + DI + c] = value;
        scaled[(i64)d * X + c] = norm[d] * value;
    }
}

extern "C" __global__ void __launch_bounds__(256) stem_weights(
    const float* __restrict__ in_proj,   // [E, D]
    const float* __restrict__ norm,      // [D]
    const float* __restrict__ embed,     // [D, F]
    const float* __restrict__ bias,      // [D]
    const float* __restrict__ out_proj,  // [D, DI]
    float* __restrict__ folded,          // [E, X]
    float* __restrict__ scaled,          // [D, X]
    float* __restrict__ wide,            // [D, Y]
    float* __restrict__ gram,            // [X, X]
    const int E, const int D, const int F, const int DI, const int X, const int Y) {
    extern __shared__ float4 shared[];
    const Stem stem = {embed, bias, D, F};
    const int across = (X + COLUMNS - 1) / COLUMNS, folds = (E + ROWS - 1) / ROWS * across,
              grams = (X + ROWS - 1) / ROWS * across;
    const int task = blockIdx.x;
    if (task < folds) {
        tile<false>(in_proj, norm, stem, task / across * ROWS, E, task % across * COLUMNS, X, folded, (float*)shared);
    } else if (task < folds + grams) {
        const int i = task - folds;
        tile<true>(in_proj, norm, stem, i / across * ROWS, X, i % across * COLUMNS, X, gram, (float*)shared);
    } else {
        const int d = (task - folds - grams) * COPIED + threadIdx.x / 64;
        if (d < D) copy_weights(out_proj, norm, stem, d, DI, X, Y, scaled, wide, threadIdx.x % 64);
    }
}
