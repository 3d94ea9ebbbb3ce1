// The last row's SSD weights, and x's convolution a head: what `mamba2_last` and its backward share. One block a window,
// one warp a head; V channels a lane.
#pragma once
#include "mamba2.cuh"

// Shared arrays of both kernels; those that are read in pairs come first, so that they are aligned for any K.
struct LastRow {
    float *cs;       // [N] C of the last row after its convolution
    float *out;      // [DI] the SSD's output with D skip
    float *scratch;  // [64] of block sums
    float *score;    // [K] C . B_k
    float *dt;       // [K, HD]
    float *decay;    // [K, HD] exp(sum_{j > k} a_j)
    float *weight;   // [K, HD] decay dt score
    float *end;
    __device__ LastRow(float* shared, int K, int N, int HD, int DI) {
        cs = shared; out = cs + N; scratch = out + DI;
        score = scratch + 64; dt = score + K; decay = dt + K * HD; weight = decay + K * HD; end = weight + K * HD;
    }
};

__device__ inline float tail_pre(const float* c, const float* weight, const float* bias, int n, i64 RN, int CH) {
    return c[n] * weight[n] + c[RN + n] * weight[CH + n] + c[2 * RN + n] * weight[2 * CH + n] +
           c[3 * RN + n] * weight[3 * CH + n] + bias[n];
}

// bxdt: the window's first row; c: its C of the oldest of the four rows; RN = R N, the step to the next row.
__device__ inline void last_weights(
    const LastRow& s, const float* bxdt, const float* c, const float* conv_weight, const float* conv_bias,
    const float* dt_bias, const float* a_log, i64 RN, int K, int E, int N, int DI, int CH, int HD) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int n = threadIdx.x; n < N; n += blockDim.x) {
        const float pre = tail_pre(c, conv_weight, conv_bias, n, RN, CH);
        s.cs[n] = pre * sigmoid(pre);
    }
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x)
        s.dt[i] = softplus(bxdt[(i64)(i / HD) * E + N + DI + i % HD] + dt_bias[i % HD]);
    __syncthreads();
    for (int k = warp; k < K; k += warps) {
        float sum = 0.0f;
        for (int n = lane; n < N; n += 32) {
            float pre = conv_bias[N + n];
            for (int lag = 0; lag < 4; ++lag)
                if (k >= lag) pre += conv_weight[(3 - lag) * CH + N + n] * bxdt[(i64)(k - lag) * E + n];
            sum += s.cs[n] * pre * sigmoid(pre);
        }
        sum = warp_sum(sum);
        if (lane == 0) s.score[k] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < K * HD; i += blockDim.x) {
        float later = 0.0f;  // from the last row backwards, so nothing cancels
        for (int j = i + (K - 1 - i / HD) * HD; j > i; j -= HD) later += s.dt[j];
        s.decay[i] = expf(-expf(a_log[i % HD]) * later);
        s.weight[i] = s.decay[i] * s.dt[i] * s.score[i / HD];
    }
    __syncthreads();
}

// out = sum_k weight_k x_k + D x_K; `x_last` (if any) takes x_K.
template <int V>
__device__ inline void last_output(
    const LastRow& s, const float* bxdt, const float* conv_weight, const float* conv_bias, const float* d_skip,
    float* x_last, int K, int E, int N, int DI, int CH, int HD) {
    const int lane = threadIdx.x % 32, P = DI / HD;
    for (int h = threadIdx.x / 32; h < HD; h += blockDim.x / 32)
        for (int p = lane * V; p < P; p += 32 * V) {
            const int at = h * P + p, ch = 2 * N + at;
            const Taps<V> taps(conv_weight + ch, conv_bias + ch, CH);
            Pack<V> sum = {}, last;
            for_conv_rows<V>(bxdt + N + at, E, K, taps, [&](const ConvRow<V>& x) {
                for (int v = 0; v < V; ++v) sum.v[v] += s.weight[x.k * HD + h] * x.value.v[v];
                last = x.value;
            });
            for (int v = 0; v < V; ++v) sum.v[v] += d_skip[h] * last.v[v];
            store<V>(s.out + at, sum);
            if (x_last) store<V>(x_last + at, last);
        }
    __syncthreads();
}
