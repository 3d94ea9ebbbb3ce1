// What `mamba2_last` and its backward share: pieces of the entries for any shape, then those for the profiles' shape.
#pragma once
#include "mamba2_window.cuh"

__device__ inline float tail_pre(const float* c, const float* weight, const float* bias, int n, int N, int CH) {
    return c[n] * weight[n] + c[N + n] * weight[CH + n] + c[2 * N + n] * weight[2 * CH + n] +
           c[3 * N + n] * weight[3 * CH + n] + bias[n];
}

// -- any shape: one block a window, a warp a head --

// Shared arrays of both kernels.
struct LastRow {
    float *cs;       // [N] C of the last row after its convolution
    float *out;      // [DI] the SSD's output with D skip
    float *scratch;  // [64] of block sums
    float *score;    // [K] C . B_k
    float *dt;       // [HD, K]
    float *decay;    // [HD, K] exp(sum_{j > k} a_j)
    float *weight;   // [HD, K] decay dt score
    float *end;
    __device__ LastRow(float* shared, int K, int N, int HD, int DI) {
        cs = shared; out = cs + N; scratch = out + DI;
        score = scratch + 64; dt = score + K; decay = dt + K * HD; weight = decay + K * HD; end = weight + K * HD;
    }
};

// The weights of the rows. u: the window's first row; c: its C of the oldest of the four rows. The sums of a run from the
// last row backwards, so nothing cancels.
__device__ inline void last_weights(
    const LastRow& s, const float* u, const float* c, const float* conv_weight, const float* conv_bias,
    const float* dt_bias, const float* a_log, int K, int E, int N, int DI, int CH, int HD) {
    for (int n = threadIdx.x; n < N; n += blockDim.x) {
        const float pre = tail_pre(c, conv_weight, conv_bias, n, N, CH);
        s.cs[n] = pre * sigmoid(pre);
    }
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x)
        s.dt[i] = softplus(u[(i64)(i % K) * E + N + DI + i / K] + dt_bias[i / K]);
    __syncthreads();
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x) {
        float later = 0.0f;
        for (int j = i / K * K + K - 1; j > i; --j) later += s.dt[j];
        s.decay[i] = expf(-expf(a_log[i / K]) * later);
    }
    for (int k = threadIdx.x / 32; k < K; k += blockDim.x / 32) {
        float sum = 0.0f;
        for (int n = threadIdx.x % 32; n < N; n += 32) {
            float pre = conv_bias[N + n];
            for (int lag = 0; lag < 4; ++lag)
                if (k >= lag) pre += conv_weight[(3 - lag) * CH + N + n] * u[(i64)(k - lag) * E + n];
            sum += s.cs[n] * pre * sigmoid(pre);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) s.score[k] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x) s.weight[i] = s.decay[i] * s.dt[i] * s.score[i % K];
    __syncthreads();
}

// out = sum_k weight_k x_k + D x_K. see(channel of DI, x_K) gets the last row of x.
template <class See>
__device__ inline void last_output(
    const LastRow& s, const float* u, const float* conv_weight, const float* conv_bias, const float* d_skip, int K, int E,
    int N, int DI, int CH, int HD, See see) {
    const int P = DI / HD;
    for (int h = threadIdx.x / 32; h < HD; h += blockDim.x / 32)
        for (int at = h * P + threadIdx.x % 32; at < (h + 1) * P; at += 32) {
            const int ch = 2 * N + at;
            const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
            float sum = 0.0f;
            const ConvRow<1> last = for_conv_rows<1, 0>(
                u + N + at, E, K, taps, [&](const ConvRow<1>& x) { sum += s.weight[h * K + x.k] * x.value.v[0]; });
            s.out[at] = sum + d_skip[h] * last.value.v[0];
            see(at, last.value.v[0]);
        }
    __syncthreads();
}

// -- the profiles' shape: 32 rows, states and heads of 64, 4 or 8 heads; one block a window, a warp a head. A lane has
// channels 2 lane and 2 lane + 1 of its warp's head, and row `lane` of it. Sizes that the compiler knows spare registers --

// A window in shared memory, with ROOM rows of x: all 32, which are asked for at once and stay (backward; 75 KB with 8 heads),
// or 16, a ring of four groups of which three are on their way while one is computed (forward; 43 KB).
template <int HD, int ROOM>
struct LastWindow {
    static constexpr int DI = HD * WIDE, CH = DI + 2 * WIDE, E = WIDE + DI + HD, THREADS = 32 * HD;
    static constexpr int GROUP = ROOM / 4, PENDING = ROOM < ROWS ? 3 : 4;  // rows copied at a time, groups asked for ahead
    float x[HD][ROOM * WIDE];  // [HD, ROOM, 64] before the convolution
    float b[ROWS * WIDE];      // [32, 64] before the convolution
    float c[4 * WIDE];         // before the convolution
    float weight[HD * ROWS];   // [HD, 32] of the rows of x in the output; before that raw dt [32, HD]
    float score[ROWS];         // C . B_k
    float state[WIDE];         // C of the last row (backward)
    float sums[2][HD];

    // Puts dt, C and B on their way, which are needed first, then PENDING groups of rows of the warp's head.
    __device__ void load(const float* u, const float* c_rows) {
        const int lane = threadIdx.x % 32, h = threadIdx.x / 32, half = threadIdx.x / 16, piece = threadIdx.x % 16 * 4;
        if (h == 0)
            for (int i = 0; i < HD; i += 4) copy_async(weight + lane * HD + i, u + lane * E + WIDE + DI + i);
        if (h == 1)
            for (int i = 0; i < 4 * WIDE; i += 128) copy_async(c + 4 * lane + i, c_rows + 4 * lane + i);
        float* to = b + half * WIDE + piece;
        const float* from = u + half * E + piece;
#pragma unroll
        for (int k = 0; k < ROWS; k += 2 * HD) copy_async(to + k * WIDE, from + k * E);
        copies_end();
#pragma unroll
        for (int group = 0; group < PENDING; ++group) load_rows(u, group * GROUP);
    }

    // The group of x's rows from `first` on, by the warp of their head; after the last row an empty one, to keep the count.
    __device__ void load_rows(const float* u, int first) {
        const int h = threadIdx.x / 32, row = threadIdx.x / 16 % 2, piece = threadIdx.x % 16 * 4;
        float* to = x[h] + (first % ROOM + row) * WIDE + piece;
        const float* from = u + row * E + WIDE + h * WIDE + piece + first * E;
        if (first < ROWS) {
#pragma unroll
            for (int k = 0; k < GROUP; k += 2) copy_async(to + k * WIDE, from + k * E);
        }
        copies_end();
    }
};

// v [M] -> lane l gets the warp's sum of v[l / (32 / M)]: 9 shuffles instead of 40 for M = 8.
template <int M>
__device__ inline float many_sums(float (&v)[M]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = M / 2; half; half /= 2) {
        const bool upper = lane & (32 / M * half);
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float send = upper ? v[i] : v[i + half];
            v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(~0u, send, 32 / M * half);
        }
    }
#pragma unroll
    for (int o = 16 / M; o; o /= 2) v[0] += __shfl_xor_sync(~0u, v[0], o);
    return v[0];
}

__device__ inline void add_product(float2& sum, const Piece<2>& w, float2 u) {
    sum.x += w.v[0] * u.x;
    sum.y += w.v[1] * u.y;
}

// A row's convolution of two channels, its rows from the oldest on.
__device__ inline float2 conv2(const Taps<2>& taps, float2 u0, float2 u1, float2 u2, float2 u3) {
    float2 pre = make_float2(taps.bias.v[0], taps.bias.v[1]);
    add_product(pre, taps.w[3], u3);
    add_product(pre, taps.w[2], u2);
    add_product(pre, taps.w[1], u1);
    add_product(pre, taps.w[0], u0);
    return pre;
}

constexpr int EACH = 4;  // rows of B that a warp takes at a time

// score[k] = C . B_k; c: the lane's two channels of C.
template <int HD, int ROOM>
__device__ inline void last_scores(LastWindow<HD, ROOM>& s, float2 c, const Taps<2>& taps) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int round = 0; round < ROWS / (HD * EACH); ++round) {
        const int first = (round * HD + threadIdx.x / 32) * EACH;
        const float* rows = s.b + first * WIDE + 2 * lane;
        float2 row[EACH + 3];
#pragma unroll
        for (int i = 0; i < EACH + 3; ++i)
            row[i] = i >= 3 || first + i >= 3 ? at2(rows + (i - 3) * WIDE) : make_float2(0.0f, 0.0f);
        float terms[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const float2 pre = conv2(taps, row[i], row[i + 1], row[i + 2], row[i + 3]);
            terms[i] = c.x * pre.x * sigmoid(pre.x) + c.y * pre.y * sigmoid(pre.y);
        }
        const float sum = many_sums(terms);
        if (lane % (32 / EACH) == 0) s.score[first + lane / (32 / EACH)] = sum;
    }
}

// dt and decay exp(sum_{j > k} a_j) of row `lane`.
struct RowDecay {
    float dt, decay;
    __device__ RowDecay(float raw, float a_log) {
        const int lane = threadIdx.x % 32;
        dt = softplus(raw);
        float later = dt;
        for (int o = 1; o < 32; o *= 2) {
            const float more = __shfl_down_sync(~0u, later, o);
            if (lane + o < 32) later += more;
        }
        later = __shfl_down_sync(~0u, later, 1);
        decay = lane < 31 ? expf(-expf(a_log) * later) : 1.0f;
    }
};

// C of the last row at the lane's two channels of the state.
__device__ inline float2 tail_conv(const float* c, const Taps<2>& taps) {
    c += threadIdx.x % 32 * 2;
    const float2 pre = conv2(taps, at2(c), at2(c + WIDE), at2(c + 2 * WIDE), at2(c + 3 * WIDE));
    return make_float2(pre.x * sigmoid(pre.x), pre.y * sigmoid(pre.y));
}

// The SSD's output with its D skip at the lane's two channels, each row as its group of copies comes. weight [32]: of the
// warp's head.
template <int HD, int ROOM>
__device__ inline float2 weighted_rows(LastWindow<HD, ROOM>& s, const float* u, const float* weight, const Taps<2>& taps) {
    constexpr int GROUP = LastWindow<HD, ROOM>::GROUP, PENDING = LastWindow<HD, ROOM>::PENDING;
    const float* x = s.x[threadIdx.x / 32] + threadIdx.x % 32 * 2;
    float2 sum = make_float2(0.0f, 0.0f), row[GROUP + 3] = {};
#pragma unroll
    for (int first = 0; first < ROWS; first += GROUP) {
        copies_wait<PENDING - 1>();
        __syncwarp();  // all lanes have read the group before, into whose place the next one comes
        s.load_rows(u, first + PENDING * GROUP);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) row[i + 3] = at2(x + (first % ROOM + i) * WIDE);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const float2 pre = conv2(taps, row[i], row[i + 1], row[i + 2], row[i + 3]);
            const float w = weight[first + i];
            sum.x += w * (pre.x * sigmoid(pre.x));
            sum.y += w * (pre.y * sigmoid(pre.y));
        }
#pragma unroll
        for (int i = 0; i < 3; ++i) row[i] = row[GROUP + i];
    }
    return sum;
}
