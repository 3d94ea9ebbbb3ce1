// x~^T gram x~ is a product of the rows with gram, then a row's product with itself. At X = 64 it runs on the tensor cores,
// 16 rows a warp; gram is symmetric, so that half of it will do, with what is off the diagonal taken twice.
#include "mma.cuh"
#include "reduce.cuh"

constexpr int WIDE = 64, GROUPS = WIDE / 8, PAIRS = GROUPS * (GROUPS + 1) / 2, TILE = 16;

__device__ inline float root(float squares, int width, float eps) { return 1.0f / sqrtf(fmaxf(squares, 0.0f) / width + eps); }

// Columns are taken in groups of 8 such that a lane needs those of its 16-byte pieces of a row: piece 16 b + 4 q holds values
// 2 q, 2 q + 1 of groups 2 b and 2 b + 1. This is the column of value m of a group.
__device__ inline int column_of(int group, int m) { return group / 2 * 16 + m / 2 * 4 + group % 2 * 2 + m % 2; }
__device__ inline int pair_of(int row, int column) { return column * (column + 1) / 2 + row; }  // groups, row <= column

// The factors of gram's upper half as the lanes of a warp need them: high and low parts of two values each.
__device__ inline void gram_factors(const float* gram, uint4* factors) {
    for (int i = threadIdx.x; i < PAIRS * 32; i += blockDim.x) {
        const int lane = i % 32, g = lane / 4, q = lane % 4;
        int column = 0;
        while (pair_of(0, column + 1) <= i / 32) ++column;
        const int row = i / 32 - pair_of(0, column), c = column_of(column, g);
        const float times = row == column ? 1.0f : 2.0f;
        const FactorB f(times * gram[column_of(row, 2 * q) * WIDE + c], times * gram[column_of(row, 2 * q + 1) * WIDE + c]);
        factors[i] = {f.high[0], f.high[1], f.low[0], f.low[1]};
    }
}

__device__ inline float2 half_of(float4 v, int half) { return half ? make_float2(v.z, v.w) : make_float2(v.x, v.y); }

extern "C" __global__ void __launch_bounds__(256, 2) stem_scale(
    const float* __restrict__ x,     // [R, K, Y], of which the last X columns are read
    const float* __restrict__ gram,  // [X, X]
    const int width,
    const float eps,
    float* __restrict__ xs,          // [R, K, X]
    const int R, const int K, const int Y, const int X) {
    __shared__ uint4 factors[PAIRS * 32];
    gram_factors(gram, factors);
    __syncthreads();
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, warps = blockDim.x / 32;
    const i64 rows = (i64)R * K, step = (i64)gridDim.x * warps * TILE;
    for (i64 first = ((i64)blockIdx.x * warps + threadIdx.x / 32) * TILE; first < rows; first += step) {
        float4 v[2][WIDE / 16];  // rows g and g + 8
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i64 row = first + g + 8 * i;
            const float4* from = (const float4*)(x + row * Y + (Y - WIDE)) + q;
#pragma unroll
            for (int b = 0; b < WIDE / 16; ++b)
                v[i][b] = row < rows ? from[4 * b] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        float c[GROUPS][4] = {};
#pragma unroll
        for (int row = 0; row < GROUPS; ++row) {
            const float2 r0 = half_of(v[0][row / 2], row % 2), r1 = half_of(v[1][row / 2], row % 2);
            const FactorA a(r0.x, r1.x, r0.y, r1.y);
#pragma unroll
            for (int column = row; column < GROUPS; ++column) {
                const uint4 f = factors[pair_of(row, column) * 32 + lane];
                const u32 high[2] = {f.x, f.y}, low[2] = {f.z, f.w};
                float part[4] = {};  // a tensor core cuts what it adds up; these sums are short, and theirs is rounded
                mma(part, a.low, high);
                mma(part, a.high, low);
                mma(part, a.high, high);
#pragma unroll
                for (int i = 0; i < 4; ++i) c[column][i] += part[i];
            }
        }
        float squares[2] = {};
#pragma unroll
        for (int column = 0; column < GROUPS; ++column) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 r = half_of(v[i][column / 2], column % 2);
                squares[i] += c[column][2 * i] * r.x + c[column][2 * i + 1] * r.y;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            squares[i] += __shfl_xor_sync(~0u, squares[i], 1);
            squares[i] += __shfl_xor_sync(~0u, squares[i], 2);
            const float s = root(squares[i], width, eps);
            const i64 row = first + g + 8 * i;
            float4* to = (float4*)(xs + row * WIDE) + q;
#pragma unroll
            for (int b = 0; b < WIDE / 16; ++b)
                if (row < rows) to[4 * b] = make_float4(v[i][b].x * s, v[i][b].y * s, v[i][b].z * s, v[i][b].w * s);
        }
    }
}

// Any width, a warp a row: correct rather than fast.
extern "C" __global__ void stem_scale_any(
    const float* __restrict__ x,     // [R, K, Y]
    const float* __restrict__ gram,  // [X, X]
    const int width,
    const float eps,
    float* __restrict__ xs,          // [R, K, X]
    const int R, const int K, const int Y, const int X) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 rows = (i64)R * K, step = (i64)gridDim.x * warps;
    for (i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32; row < rows; row += step) {
        const float* from = x + row * Y + (Y - X);
        float squares = 0.0f;
        for (int c = lane; c < X; c += 32) {
            float sum = 0.0f;
            for (int k = 0; k < X; ++k) sum += from[k] * gram[k * X + c];
            squares += sum * from[c];
        }
        const float s = root(warp_sum(squares), width, eps);
        for (int c = lane; c < X; c += 32) xs[row * X + c] = from[c] * s;
    }
}
