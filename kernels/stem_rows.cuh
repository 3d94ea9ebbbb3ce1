// x~^T gram x~ of rows of at most 64 columns, on the tensor cores, 16 rows a warp: a product of the rows with gram, then a
// row's product with itself. gram is symmetric, so that half of it will do, with what is off the diagonal taken twice.
// g = lane / 4, q = lane % 4, as in mma.cuh.
#pragma once
#include "float4.cuh"
#include "mma.cuh"
#include "reduce.cuh"

constexpr int WIDE = 64, PIECES = WIDE / 16, GROUPS = WIDE / 8, PAIRS = GROUPS * (GROUPS + 1) / 2, TILE = 16;

// Rounding may leave less than no squares. A NaN stays one.
__device__ inline float root(float squares, int width, float eps) {
    return 1.0f / sqrtf((squares < 0.0f ? 0.0f : squares) / width + eps);
}

// Columns are taken in groups of 8 such that a lane needs those of its 16-byte pieces of a row: piece 16 b + 4 q holds values
// 2 q, 2 q + 1 of groups 2 b and 2 b + 1. This is the column of value m of a group.
__device__ inline int column_of(int group, int m) { return group / 2 * 16 + m / 2 * 4 + group % 2 * 2 + m % 2; }
__device__ inline int pair_of(int row, int column) { return column * (column + 1) / 2 + row; }  // groups, row <= column

// The factors of gram's upper half, [X, X] and zeros behind it, as the lanes of a warp need them: high and low parts of two
// values each, [PAIRS, 32].
__device__ inline void gram_factors(const float* gram, int X, uint4* factors) {
    const auto at = [&](int row, int column) { return row < X && column < X ? gram[row * X + column] : 0.0f; };
    for (int i = threadIdx.x; i < PAIRS * 32; i += blockDim.x) {
        const int lane = i % 32, g = lane / 4, q = lane % 4;
        int column = 0;
        while (pair_of(0, column + 1) <= i / 32) ++column;
        const int row = i / 32 - pair_of(0, column), c = column_of(column, g);
        const float times = row == column ? 1.0f : 2.0f;
        const FactorB<true> f(times * at(column_of(row, 2 * q), c), times * at(column_of(row, 2 * q + 1), c));
        factors[i] = {f.high[0], f.high[1], f.low[0], f.low[1]};
    }
}

__device__ inline float2 half_of(float4 v, int half) { return half ? make_float2(v.z, v.w) : make_float2(v.x, v.y); }

// Rows g and g + 8, whose pieces are v, over the root of their mean square: what they are to be multiplied with.
__device__ inline void row_scales(const float4 (&v)[2][PIECES], const uint4* factors, int width, float eps, float (&scale)[2]) {
    const int lane = threadIdx.x % 32;
    float c[GROUPS][4] = {};
#pragma unroll
    for (int row = 0; row < GROUPS; ++row) {
        const float2 r0 = half_of(v[0][row / 2], row % 2), r1 = half_of(v[1][row / 2], row % 2);
        const FactorA<true> a(r0.x, r1.x, r0.y, r1.y);
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
        scale[i] = root(squares[i], width, eps);
    }
}

// Of one row of any width, by a warp.
__device__ inline float row_scale(const float* row, const float* gram, int X, int width, float eps) {
    float squares = 0.0f;
    for (int c = threadIdx.x % 32; c < X; c += 32) {
        float sum = 0.0f;
        for (int k = 0; k < X; ++k) sum += row[k] * gram[k * X + c];
        squares += sum * row[c];
    }
    return root(warp_sum(squares), width, eps);
}
