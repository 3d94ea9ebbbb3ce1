// Writing proj is what takes the time: 338 MB for 4096 windows of the small profile, 608 of the seed one. So a block stays
// for the whole launch and keeps its share of folded, columns of proj, in shared memory. It takes ROWS rows at a time: four
// of its warps, in turn, scale the next ones, 16 each, and all of them multiply these ones, 16 columns after the other. So
// what the grid writes at any time are few rows, each from end to end. gridDim.y: the number of shares.
// g = lane / 4, q = lane % 4, as in mma.cuh.
#include "async.cuh"
#include "stem_rows.cuh"

#define ARGS                                                                                                        \
    const float *__restrict__ x, const float *__restrict__ gram, const float *__restrict__ folded, const int width, \
        const float eps, const int tf32, float *__restrict__ xs, float *__restrict__ proj, const int R, const int K, \
        const int Y, const int X, const int E

constexpr int WARPS = THREADS / 32, TILES = ROWS / TILE, TURNS = WARPS / TILES;  // tiles: 16 rows
constexpr int FACTORS = GROUPS * 32;  // pieces of 16 bytes of a tile: values of FactorA, [GROUPS, 32]
constexpr int QUAD = 4 * WIDE / 4;    // of four rows of folded
static_assert(TILES == 4 && WARPS % TILES == 0, "two tiles of even rows, two of odd ones");

// The first of a lane's two rows of a tile, among the block's; the other one is TILE later. A tile is every second row: where
// rows of proj are an odd number of pieces long, odd ones begin in the middle of a sector of 32 bytes.
__device__ inline int row_of(int tile, int g) { return tile / 2 + tile % 2 * 2 * TILE + 2 * g; }

// Puts n quads of folded's rows on their way, as the lanes of a warp take them: [n, PIECES, half, 8]. Rows go to the halves,
// a product of eight columns each, such that a lane's sums are neighbours: of 16 columns the quad q.
__device__ inline void load_folded(const float* folded, int X, int E, int first, int n, float4* weights) {
    for (int i = threadIdx.x; i < n * QUAD; i += THREADS) {
        const int quad = first + i / QUAD, column = i / 16 % PIECES * 16 + i % 4 * 4, row = i / 8 % 2 * 2 + i / 4 % 2;
        if (quad >= 0 && quad < E / 4 && column < X)
            copy_async((float*)(weights + i), folded + (4 * quad + row) * X + column);
        else
            weights[i] = zeros();
    }
    copies_end();
}

// c = two tiles times 16 rows of folded. A lane's sums: of rows g and g + 8 the first two of its columns by c[t][0], the last
// two by c[t][1].
template <bool EXACT>
__device__ inline void multiply(const float4 (&a)[2][GROUPS], const float4* weights, float (&c)[2][2][4]) {
#pragma unroll
    for (int k = 0; k < GROUPS; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 w = half_of(weights[(k / 2 * 2 + half) * 8], k % 2);
            const FactorB<EXACT> b(w.x, w.y);
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const FactorA<EXACT> v(a[t][k].x, a[t][k].y, a[t][k].z, a[t][k].w);
                if constexpr (EXACT) {
                    float part[4] = {};  // as in row_scales
                    multiply_add(part, v, b);
#pragma unroll
                    for (int i = 0; i < 4; ++i) c[t][half][i] += part[i];
                } else {
                    multiply_add(c[t][half], v, b);
                }
            }
        }
    }
}

// Columns 16 p .. 16 p + 15 of the share, from `from` on, for p = place, place + WARPS, ... below n. In rows that begin in the
// middle of a sector they are four earlier, so that all sectors are written whole. `left`: rows that there are.
template <bool EXACT>
__device__ inline void write_columns(
    const float4* scaled, const float4* weights, int place, int n, int from, int left, int E, float* proj) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll 1
    for (int odd = 0; odd < 2; ++odd) {
        float4 a[2][GROUPS];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int k = 0; k < GROUPS; ++k) a[t][k] = scaled[(2 * odd + t) * FACTORS + k * 32 + lane];
        }
        const int early = odd & E / 4, first = row_of(2 * odd, g);
        int column = from + 16 * place - 4 * early + 4 * q;
        float* to = proj + first * E + column;
        const float4* weight = weights + (4 * place + 1 - early + g / 2) * QUAD + lane % 8;
#pragma unroll 1
        for (int p = place; p < n; p += WARPS, column += 16 * WARPS, to += 16 * WARPS, weight += 4 * WARPS * QUAD) {
            float c[2][2][4] = {};
            multiply<EXACT>(a, weight, c);
            if (column < 0 || column >= E) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *c0 = c[i / 2][0] + i % 2 * 2, *c1 = c[i / 2][1] + i % 2 * 2;
                if (first + i * TILE < left) *(float4*)(to + i * TILE * E) = make_float4(c0[0], c0[1], c1[0], c1[1]);
            }
        }
    }
}

template <bool EXACT>
__device__ inline void project(
    const float* x, const float* gram, const float* folded, int width, float eps, float* xs, float* proj, int rows, int Y,
    int X, int E) {
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, warp = threadIdx.x / 32, own = warp % TILES;
    const int columns = (E / 4 + E / 4 % 2 + 3) / 4, from = columns * blockIdx.y / gridDim.y;  // 16 of them each
    const int n = columns * (blockIdx.y + 1) / gridDim.y - from;
    uint4* factors = shared;                           // [PAIRS, 32], of gram
    float4* scaled = (float4*)(factors + PAIRS * 32);  // [2, TILES, FACTORS], of even and odd steps
    float4* weights = scaled + 2 * TILES * FACTORS;    // [1 + 4 n, QUAD]: the share and the quad before it

    float4 v[2][PIECES];  // the rows that a warp scales next
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = first + row_of(own, g) + i * TILE;
            const float* at = x + (i64)row * Y + (Y - X) + 4 * q;
#pragma unroll
            for (int b = 0; b < PIECES; ++b)
                v[i][b] = row < rows && 16 * b + 4 * q < X ? *(const float4*)(at + 16 * b) : zeros();
        }
    };
    int first = blockIdx.x * ROWS;
    const int stride = gridDim.x * ROWS;
    if (warp < TILES) load(first);
    load_folded(folded, X, E, 4 * from - 1, 4 * n + 1, weights);
    gram_factors(gram, X, factors);
    __syncthreads();

    // At each step the rows from `first` on are scaled, and those that the step before has scaled are multiplied.
    for (int step = 0;; ++step, first += stride) {
        const int turn = step % TURNS;
        if (warp / TILES == turn && first < rows) {
            float scale[2];
            row_scales(v, factors, width, eps, scale);
            float4* to = scaled + (step % 2 * TILES + own) * FACTORS + lane;
            float* out = xs + (i64)(first + row_of(own, g)) * X + 4 * q;
            const bool mine = first / ROWS % gridDim.y == blockIdx.y;  // one of the shares writes xs
#pragma unroll
            for (int b = 0; b < PIECES; ++b) {
                const float4 r0 = v[0][b] * scale[0], r1 = v[1][b] * scale[1];
                to[2 * b * 32] = factor4<EXACT>(make_float4(r0.x, r1.x, r0.y, r1.y));
                to[2 * b * 32 + 32] = factor4<EXACT>(make_float4(r0.z, r1.z, r0.w, r1.w));
                const int row = first + row_of(own, g), column = 16 * b + 4 * q;
                if (mine && row < rows && column < X) *(float4*)(out + 16 * b) = r0;
                if (mine && row + TILE < rows && column < X) *(float4*)(out + TILE * X + 16 * b) = r1;
            }
        }
        if (warp / TILES == (step + 1) % TURNS) load(first + stride);
        if (step == 0) {
            copies_wait<0>();
            if (!EXACT)
                for (int i = threadIdx.x; i < (1 + 4 * n) * QUAD; i += THREADS) weights[i] = factor4<EXACT>(weights[i]);
        } else {
            const int before = first - stride;
            const int place = (warp + WARPS - (turn + 1) * TILES) % WARPS;  // who scales has the last ones: no more
            const float4* done = scaled + (step + 1) % 2 * TILES * FACTORS;
            write_columns<EXACT>(done, weights, place, n, 16 * from, rows - before, E, proj + (i64)before * E);
        }
        if (first >= rows) return;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) stem_project(ARGS) {
    project<false>(x, gram, folded, width, eps, xs, proj, R * K, Y, X, E);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) stem_project_exact(ARGS) {
    project<true>(x, gram, folded, width, eps, xs, proj, R * K, Y, X, E);
}
