// The last row's SSD weights and its output: what `mamba2_last` and its backward share. One block a window, one warp a
// head. ROWS is 32 for the profiles' shape (32 rows, states and heads of 64, at most 8 heads, each with a warp of its own
// and 2 channels a lane); 0 for any other, with one channel a lane.
#pragma once
#include "mamba2.cuh"

template <int ROWS>
constexpr int LANE = ROWS ? 2 : 1;  // channels of a lane

// A thread's values number threadIdx.x + n blockDim.x of a row [DI], the first two asked for at once, long before use: that
// is all of them in the profiles' shape.
struct Early {
    const float* row;
    float first, second;
    __device__ Early(const float* row, int DI) : row(row) {
        first = threadIdx.x < DI ? row[threadIdx.x] : 0.0f;
        second = threadIdx.x + blockDim.x < DI ? row[threadIdx.x + blockDim.x] : 0.0f;
    }
    __device__ float at(int i) const {
        return i == threadIdx.x ? first : i == threadIdx.x + blockDim.x ? second : row[i];
    }
};

// Shared arrays of both kernels; those that are read in pairs come first, so that they are aligned.
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

__device__ inline float tail_pre(const float* c, const float* weight, const float* bias, int n, int N, int CH) {
    return c[n] * weight[n] + c[N + n] * weight[CH + n] + c[2 * N + n] * weight[2 * CH + n] +
           c[3 * N + n] * weight[3 * CH + n] + bias[n];
}

// dt and decay; sums run from the last row backwards, so nothing cancels. raw: dt's column at row 0.
template <int ROWS>
__device__ inline void last_decays(
    const LastRow& s, const float* raw, const float* dt_bias, const float* a_log, int K, int E, int HD) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if constexpr (ROWS) {  // a warp a head, a lane a row
        if (warp >= HD) return;
        const float step = softplus(raw[(i64)lane * E + warp] + dt_bias[warp]);
        float later = step;
        for (int o = 1; o < 32; o *= 2) {
            const float more = __shfl_down_sync(~0u, later, o);
            if (lane + o < 32) later += more;
        }
        later = __shfl_down_sync(~0u, later, 1);
        s.dt[warp * 32 + lane] = step;
        s.decay[warp * 32 + lane] = lane < 31 ? expf(-expf(a_log[warp]) * later) : 1.0f;
    } else {
        for (int i = threadIdx.x; i < K * HD; i += blockDim.x)
            s.dt[i] = softplus(raw[(i64)(i % K) * E + i / K] + dt_bias[i / K]);
        __syncthreads();
        for (int i = threadIdx.x; i < K * HD; i += blockDim.x) {
            float later = 0.0f;
            for (int j = i / K * K + K - 1; j > i; --j) later += s.dt[j];
            s.decay[i] = expf(-expf(a_log[i / K]) * later);
        }
    }
}

// score[k] = C . B_k, B from its convolution; u: B at row 0, weight and bias: B's.
template <int ROWS>
__device__ inline void last_scores(
    const LastRow& s, const float* u, const float* weight, const float* bias, int K, int E, int N, int CH) {
    constexpr int EACH = 4;  // rows of a warp
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if constexpr (ROWS) {
        const Taps<2> taps(weight + 2 * lane, bias + 2 * lane, CH);
        const Pack<2> c = load<2>(s.cs + 2 * lane);
        for (int first = warp * EACH; first < ROWS; first += warps * EACH) {
            Pack<2> row[EACH + 3];
#pragma unroll
            for (int i = 0; i < EACH + 3; ++i)
                row[i] = first + i >= 3 ? load<2>(u + (i64)(first + i - 3) * E + 2 * lane) : Pack<2>{};
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                float sum = 0.0f;
#pragma unroll
                for (int v = 0; v < 2; ++v) {
                    float pre = taps.bias.v[v];
#pragma unroll
                    for (int j = 3; j >= 0; --j) pre += taps.w[j].v[v] * row[i + j].v[v];
                    sum += c.v[v] * pre * sigmoid(pre);
                }
                sum = warp_sum(sum);
                if (lane == 0) s.score[first + i] = sum;
            }
        }
    } else {
        for (int k = warp; k < K; k += warps) {
            float sum = 0.0f;
            for (int n = lane; n < N; n += 32) {
                float pre = bias[n];
                for (int lag = 0; lag < 4; ++lag)
                    if (k >= lag) pre += weight[(3 - lag) * CH + n] * u[(i64)(k - lag) * E + n];
                sum += s.cs[n] * pre * sigmoid(pre);
            }
            sum = warp_sum(sum);
            if (lane == 0) s.score[k] = sum;
        }
    }
}

// bxdt: the window's first row; c: its C of the oldest of the four rows.
template <int ROWS>
__device__ inline void last_weights(
    const LastRow& s, const float* bxdt, const float* c, const float* conv_weight, const float* conv_bias,
    const float* dt_bias, const float* a_log, int K, int E, int N, int DI, int CH, int HD) {
    for (int n = threadIdx.x; n < N; n += blockDim.x) {
        const float pre = tail_pre(c, conv_weight, conv_bias, n, N, CH);
        s.cs[n] = pre * sigmoid(pre);
    }
    last_decays<ROWS>(s, bxdt + N + DI, dt_bias, a_log, K, E, HD);
    __syncthreads();
    last_scores<ROWS>(s, bxdt, conv_weight + N, conv_bias + N, K, E, N, CH);
    __syncthreads();
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x) s.weight[i] = s.decay[i] * s.dt[i] * s.score[i % K];
    __syncthreads();
}

// out = sum_k weight_k x_k + D x_K. see(ConvRow, channel of DI) gets every row of x.
template <int ROWS, bool UNROLLED, class See>
__device__ inline void last_output(
    const LastRow& s, const float* bxdt, const float* conv_weight, const float* conv_bias, const float* d_skip, int rows,
    int E, int N, int DI, int CH, int HD, See see) {
    constexpr int V = LANE<ROWS>;
    const int lane = threadIdx.x % 32, P = ROWS ? 64 : DI / HD, K = ROWS ? ROWS : rows;
    for (int h = threadIdx.x / 32; h < HD; h += ROWS ? HD : blockDim.x / 32)
        for (int p = lane * V; p < P; p += 32 * V) {
            const int at = h * P + p, ch = 2 * N + at;
            const Taps<V> taps(conv_weight + ch, conv_bias + ch, CH);
            const float* weight = s.weight + h * K;
            Pack<V> sum = {}, last;
            for_conv_rows<V, ROWS, UNROLLED>(bxdt + N + at, E, K, taps, [&](const ConvRow<V>& x) {
#pragma unroll
                for (int v = 0; v < V; ++v) sum.v[v] += weight[x.k] * x.value.v[v];
                last = x.value;
                see(x, at);
            });
#pragma unroll
            for (int v = 0; v < V; ++v) sum.v[v] += d_skip[h] * last.v[v];
            store<V>(s.out + at, sum);
        }
    __syncthreads();
}

__device__ inline bool profile_shape(int K, int E, int N, int DI, int HD) {
    return K == 32 && N == 64 && DI == 64 * HD && HD <= 8 && E % 2 == 0;
}
