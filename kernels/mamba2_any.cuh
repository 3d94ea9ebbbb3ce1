// A Mamba-2 mixer of any shape, one block a window, head by head through shared memory: correct rather than fast.
#pragma once
#include "mamba2.cuh"

// Shared arrays of both kernels.
struct AnyWindow {
    float *c, *b;    // [K, N] after their convolution
    float *score;    // [K, K] C_t . B_k
    float *x;        // [K, P] of one head after its convolution
    float *m;        // [K, K] the masked matrix of one head
    float *dt;       // [K]
    double *prefix;  // [K] sums of log decay; in double, so that differences are exact in float
    float *end;
    __device__ AnyWindow(double* shared, int K, int N, int P) {
        prefix = shared;
        c = (float*)(shared + K); b = c + K * N; score = b + K * N; x = score + K * K; m = x + K * P; dt = m + K * K;
        end = dt + K;
    }
    // log decay from row k to row t.
    __device__ float log_decay(int t, int k) const { return (float)(prefix[t] - prefix[k]); }
};

// to[k, i] = SiLU of the convolution of channel first + i, i < n; u: row 0 of all channels.
__device__ inline void conv_any(
    const float* u, int E, const float* weight, const float* bias, int CH, int first, int n, int K, float* to) {
    for (int i = threadIdx.x; i < K * n; i += blockDim.x) {
        const int k = i / n, ch = first + i % n;
        float pre = bias[ch];
        for (int lag = 0; lag < 4; ++lag)
            if (k >= lag) pre += weight[(3 - lag) * CH + ch] * u[(i64)(k - lag) * E + ch];
        to[i] = pre * sigmoid(pre);
    }
}

// C, B and the scores. `u`: the channels C, B, x, dt at row 0.
__device__ inline void any_scores(
    const AnyWindow& s, const float* u, int E, const float* weight, const float* bias, int CH, int N, int K) {
    conv_any(u, E, weight, bias, CH, 0, N, K, s.c);
    conv_any(u, E, weight, bias, CH, N, N, K, s.b);
    __syncthreads();
    for (int i = threadIdx.x; i < K * K; i += blockDim.x) {
        const float *c = s.c + i / K * N, *b = s.b + i % K * N;
        float sum = 0.0f;
        for (int n = 0; n < N; ++n) sum += c[n] * b[n];
        s.score[i] = sum;
    }
    __syncthreads();
}

// x, dt, the decay's prefixes and the masked matrix of head h.
__device__ inline void any_head(
    const AnyWindow& s, const float* u, int E, const float* weight, const float* bias, const float* dt_bias,
    const float* a_log, int h, int CH, int N, int P, int K) {
    conv_any(u, E, weight, bias, CH, 2 * N + h * P, P, K, s.x);
    for (int k = threadIdx.x; k < K; k += blockDim.x) s.dt[k] = softplus(u[(i64)k * E + CH + h] + dt_bias[h]);
    __syncthreads();
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        double sum = 0.0;
        for (int j = 0; j <= k; ++j) sum += (double)s.dt[j];
        s.prefix[k] = -(double)expf(a_log[h]) * sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < K * K; i += blockDim.x) {
        const int t = i / K, k = i % K;
        s.m[i] = t >= k ? s.score[i] * expf(s.log_decay(t, k)) * s.dt[k] : 0.0f;
    }
    __syncthreads();
}

// Y[t, p] of the head in shared memory.
__device__ inline float any_output(const AnyWindow& s, int t, int p, float skip, int P, int K) {
    float sum = skip * s.x[t * P + p];
    for (int k = 0; k <= t; ++k) sum += s.m[t * K + k] * s.x[k * P + p];
    return sum;
}
