// One block a part. At X = 64 a thread keeps 8 x 8 of the sums in registers, of the 36 such tiles on and above the diagonal
// (the sums are symmetric), for every seventh row: 7 x 36 = 252 of 256 threads. Rows come through shared memory.
#include "float4.cuh"

constexpr int WIDE = 64, GROUPS = WIDE / 8, PAIRS = GROUPS * (GROUPS + 1) / 2;
constexpr int THREADS = 256, TEAMS = 7, PIECES = WIDE / 4;  // a piece: 16 bytes of a row
constexpr int LOADS = (ROWS * PIECES + THREADS - 1) / THREADS;  // pieces of a thread, of ROWS rows
static_assert(ROWS % TEAMS == 0 && TEAMS * PAIRS <= THREADS, "what the threads are laid out for");
static_assert(16 * PAIRS <= 2 * ROWS * PIECES, "the sums fit where the rows were");

// A group's columns are two pieces half a row apart: eight lanes then read eight neighbouring pieces.
__device__ inline int column_of(int group, int m) { return 4 * group + m % 4 + m / 4 * (WIDE / 2); }

// ROWS rows from `first` on and what their product is weighted by, a few pieces a thread; zeros behind `last`.
struct Rows {
    float4 piece[LOADS];
    float weight;
    __device__ void load(const float* xs, const float* row_dot, i64 first, i64 last) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = threadIdx.x + j * THREADS;
            const i64 row = first + i / PIECES;
            const bool there = i < ROWS * PIECES && row < last;
            piece[j] = there ? ((const float4*)xs)[row * PIECES + i % PIECES] : zeros();
        }
        weight = threadIdx.x < ROWS && first + threadIdx.x < last ? row_dot[first + threadIdx.x] : 0.0f;
    }
    __device__ void store(float4* pieces, float* weights) const {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = threadIdx.x + j * THREADS;
            if (i < ROWS * PIECES) pieces[i] = piece[j];
        }
        if (threadIdx.x < ROWS) weights[threadIdx.x] = weight;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) stem_gram(
    const float* __restrict__ xs,       // [R, K, X]
    const float* __restrict__ row_dot,  // [R, K]
    float* __restrict__ partial,        // [P, Q]
    const int R, const int K, const int X, const int P, const int Q) {
    extern __shared__ float4 shared[];  // [2, ROWS, PIECES], their weights [2, ROWS]; then [16, PAIRS]
    const i64 p = blockIdx.x, last = (p + 1) * R / P * K;
    const int team = threadIdx.x / PAIRS, pair = threadIdx.x % PAIRS;
    int a = 0, from = 0;  // the tile's groups: rows a, columns b
    while (from + GROUPS - a <= pair) from += GROUPS - a++;
    const int b = pair - from + a;
    float sum[8][8] = {};
    Rows rows;
    i64 first = p * R / P * K;
    rows.load(xs, row_dot, first, last);
    for (int turn = 0; first < last; turn ^= 1) {
        float4* pieces = shared + turn * ROWS * PIECES;
        float* weights = (float*)(shared + 2 * ROWS * PIECES) + turn * ROWS;
        rows.store(pieces, weights);
        __syncthreads();  // also: nobody reads the other half any more, which is written next
        const int n = (int)min((i64)ROWS, last - first);
        first += ROWS;
        rows.load(xs, row_dot, first, last);
        if (team < TEAMS) {
#pragma unroll 2
            for (int r = team; r < n; r += TEAMS) {
                const float4 l0 = pieces[r * PIECES + a], l1 = pieces[r * PIECES + a + PIECES / 2],
                             r0 = pieces[r * PIECES + b], r1 = pieces[r * PIECES + b + PIECES / 2];
                const float w = weights[r];
                const float left[8] = {l0.x * w, l0.y * w, l0.z * w, l0.w * w, l1.x * w, l1.y * w, l1.z * w, l1.w * w};
                const float right[8] = {r0.x, r0.y, r0.z, r0.w, r1.x, r1.y, r1.z, r1.w};
#pragma unroll
                for (int i = 0; i < 8; ++i) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) sum[i][j] += left[i] * right[j];
                }
            }
        }
    }
    for (int turn = 0; turn < TEAMS; ++turn) {  // one team after the other adds its sums: little memory, a fixed order
        __syncthreads();
        if (team != turn) continue;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float* s = sum[i / 2] + i % 2 * 4;
            const float4 so_far = turn ? shared[i * PAIRS + pair] : zeros();
            shared[i * PAIRS + pair] = make_float4(so_far.x + s[0], so_far.y + s[1], so_far.z + s[2], so_far.w + s[3]);
        }
    }
    __syncthreads();
    float* out = partial + p * Q;
    for (int t = threadIdx.x; t < 16 * PAIRS; t += THREADS) {
        const float4 total = shared[t];
        const int i = t / PAIRS;
        int above = 0, before = 0;
        while (before + GROUPS - above <= t % PAIRS) before += GROUPS - above++;
        const int right = t % PAIRS - before + above, row = column_of(above, i / 2), column = column_of(right, i % 2 * 4);
        *(float4*)(out + row * WIDE + column) = total;
        if (above == right) continue;
        out[column * WIDE + row] = total.x;
        out[(column + 1) * WIDE + row] = total.y;
        out[(column + 2) * WIDE + row] = total.z;
        out[(column + 3) * WIDE + row] = total.w;
    }
}

// Any width, a thread a sum: correct rather than fast.
extern "C" __global__ void stem_gram_any(
    const float* __restrict__ xs,       // [R, K, X]
    const float* __restrict__ row_dot,  // [R, K]
    float* __restrict__ partial,        // [P, Q]
    const int R, const int K, const int X, const int P, const int Q) {
    const i64 p = blockIdx.x, first = p * R / P * K, last = (p + 1) * R / P * K;
    for (int i = threadIdx.x; i < Q; i += blockDim.x) {
        float sum = 0.0f;
        for (i64 row = first; row < last; ++row) sum += row_dot[row] * xs[row * X + i / X] * xs[row * X + i % X];
        partial[p * Q + i] = sum;
    }
}
