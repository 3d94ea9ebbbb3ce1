// One block a window, one warp a head, three passes over x's channels: output, dY . x, gradients. In the profiles' shape x
// stays in registers for the second (64 of them a lane); the third computes the convolution again and finds the window in
// L2. At 1024 windows of the seed size 177 MB move (about 45 us).
#include "mamba2_last.cuh"

// v [8] -> lane l gets the warp's sum of v[l / 4]: 9 shuffles instead of 40.
__device__ inline float eight_sums(float (&v)[AHEAD]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 4; half; half /= 2) {
        const bool upper = lane & (4 * half);
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float send = upper ? v[i] : v[i + half];
            v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(~0u, send, 4 * half);
        }
    }
    v[0] += __shfl_xor_sync(~0u, v[0], 2);
    return v[0] + __shfl_xor_sync(~0u, v[0], 1);
}

// q [HD, K] = dy_h . x_kh, x from its convolution again.
__device__ inline void project(
    const float* u, const float* conv_weight, const float* conv_bias, const float* dy, float* q, int K, int E, int N,
    int DI, int CH, int HD) {
    const int lane = threadIdx.x % 32, P = DI / HD;
    for (int h = threadIdx.x / 32; h < HD; h += blockDim.x / 32)
        for (int p0 = 0; p0 < P; p0 += 32) {
            // Every lane takes part in the sums; one without a channel of its own repeats the last one, times zero.
            const bool own = p0 + lane < P;
            const int at = h * P + (own ? p0 + lane : P - 1), ch = 2 * N + at;
            const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
            const float d = own ? dy[at] : 0.0f;
            for_conv_rows<1, 0, false>(u + N + at, E, K, taps, [&](const ConvRow<1>& x) {
                const float sum = warp_sum(d * x.value.v[0]);
                if (lane == 0) q[h * K + x.k] = p0 ? q[h * K + x.k] + sum : sum;
            });
        }
}

// The same of 32 rows that a warp has in registers.
__device__ inline void project(const Pack<2> (&x)[32], Pack<2> d, float* q) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k0 = 0; k0 < 32; k0 += AHEAD) {
        float terms[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) terms[i] = d.v[0] * x[k0 + i].v[0] + d.v[1] * x[k0 + i].v[1];
        const float sum = eight_sums(terms);
        if (lane % 4 == 0) q[k0 + lane / 4] = sum;
    }
}

template <int ROWS>
__device__ inline void mixer_last_backward(
    const float* dout, const float* u, const float* c, const float* z, const float* conv_weight, const float* conv_bias,
    const float* dt_bias, const float* a_log, const float* d_skip, const float* norm_weight, float eps, float* du,
    float* dc, float* dz, float* partial, int rows, int E, int N, int DI, int CH, int HD) {
    extern __shared__ float shared[];
    constexpr int V = LANE<ROWS>;
    const int K = ROWS ? ROWS : rows;
    float *x_last = shared, *dy = x_last + DI;
    const LastRow s(dy + DI, K, N, HD, DI);
    float *q = s.end, *dscore = q + K * HD;
    const Places at(CH, HD, DI);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, P = ROWS ? 64 : DI / HD;
    Pack<V> x[ROWS ? ROWS : 1];
    last_weights<ROWS>(s, u, c, conv_weight, conv_bias, dt_bias, a_log, K, E, N, DI, CH, HD);
    last_output<ROWS, (ROWS > 0)>(s, u, conv_weight, conv_bias, d_skip, K, E, N, DI, CH, HD, [&](const ConvRow<V>& row, int i) {
        if constexpr (ROWS > 0) x[row.k] = row.value;
        if (row.k == K - 1) store<V>(x_last + i, row.value);
    });

    float sums[2] = {};  // of g^2 and of dout weight g
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const float g = s.out[i] * z[i] * sigmoid(z[i]);
        sums[0] += g * g;
        sums[1] += dout[i] * norm_weight[i] * g;
    }
    block_sums(sums, s.scratch);
    const float rstd = 1.0f / sqrtf(sums[0] / DI + eps), mean_r = rstd * sums[1] / DI;
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const NormGrad grad(dout[i], s.out[i], z[i], norm_weight[i], rstd, mean_r);
        dy[i] = grad.dy;
        dz[i] = grad.dz;
        partial[at.norm + i] = grad.dweight;
    }
    at.clear_padding(partial, CH, HD, DI);
    __syncthreads();

    if constexpr (ROWS > 0) {
        if (warp < HD) project(x, load<2>(dy + warp * P + 2 * lane), q + warp * K);
    } else {
        project(u, conv_weight, conv_bias, dy, q, K, E, N, DI, CH, HD);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        float sum = 0.0f;
        for (int i = k; i < HD * K; i += K) sum += q[i] * s.decay[i] * s.dt[i];
        dscore[k] = sum;
    }
    // A warp a head, a lane a row. da_k = sum_{j < k} q_j w_j, the gradient of the row's log decay.
    for (int h = warp; h < HD; h += warps) {
        const float rate = -expf(a_log[h]);
        float bias_sum = 0.0f, rate_sum = 0.0f, skip_sum = 0.0f;
        for (int k = lane; k < K; k += 32) {
            const int i = h * K + k;
            float da = 0.0f;
            for (int j = h * K; j < i; ++j) da += q[j] * s.weight[j];
            da *= rate;
            const float raw = u[(i64)k * E + N + DI + h] + dt_bias[h];
            const float ddt = (q[i] * s.decay[i] * s.score[k] + da) * sigmoid(raw);
            du[(i64)k * E + N + DI + h] = ddt;
            bias_sum += ddt;
            rate_sum += da * s.dt[i];
        }
        for (int p = lane; p < P; p += 32) skip_sum += dy[h * P + p] * x_last[h * P + p];
        bias_sum = warp_sum(bias_sum); rate_sum = warp_sum(rate_sum); skip_sum = warp_sum(skip_sum);
        if (lane == 0) {
            partial[at.dt_bias + h] = bias_sum;
            partial[at.a_log + h] = rate_sum;
            partial[at.d_skip + h] = skip_sum;
        }
    }
    __syncthreads();

    const int blocks = (N + 32 * V - 1) / (32 * V);  // of B's channels; they come after the heads
    for (int task = warp; task < HD + blocks; task += warps) {
        const bool of_x = task < HD;
        const int first = of_x ? N + task * P : 0, stop = of_x ? first + P : N;
        for (int n = first + (of_x ? 0 : (task - HD) * 32 * V) + lane * V; n < stop; n += of_x ? 32 * V : N) {
            const int ch = N + n;
            const Taps<V> taps(conv_weight + ch, conv_bias + ch, CH);
            const Pack<V> factor = load<V>(of_x ? dy + n - N : s.cs + n);
            Pack<V> dcs = {};
            conv_backward<V, ROWS>(u + n, E, K, taps, [&](const ConvRow<V>& row) {
                float scale = of_x ? s.weight[task * K + row.k] : dscore[row.k];
                if (of_x && row.k == K - 1) scale += d_skip[task];
                Pack<V> d;
                for (int v = 0; v < V; ++v) {
                    d.v[v] = scale * factor.v[v];
                    dcs.v[v] += scale * row.value.v[v];
                }
                return d;
            }, du + n, partial + ch, partial + at.conv_bias + ch, CH);
            if (of_x) continue;
            for (int v = 0; v < V; ++v) {  // dC at the last row is now known: on through C's convolution there
                const int i = n + v;
                const float pre = tail_pre(c, conv_weight, conv_bias, i, N, CH), gate = sigmoid(pre);
                const float dpre = dcs.v[v] * silu_slope(pre * gate, gate);
                for (int j = 0; j < 4; ++j) {
                    dc[j * N + i] = conv_weight[j * CH + i] * dpre;
                    partial[j * CH + i] = c[j * N + i] * dpre;
                }
                partial[at.conv_bias + i] = dpre;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(288, 2) mamba2_last_bwd(
    const float* __restrict__ dy,           // [R, DI]
    const float* __restrict__ bxdt,         // [R, K, E]
    const float* __restrict__ c,            // [R, 4, N]
    const float* __restrict__ z,            // [R, DI]
    const float* __restrict__ conv_weight,  // [4, CH]
    const float* __restrict__ conv_bias,    // [CH]
    const float* __restrict__ dt_bias,      // [HD]
    const float* __restrict__ a_log,        // [HD]
    const float* __restrict__ d_skip,       // [HD]
    const float* __restrict__ norm_weight,  // [DI]
    const float eps,
    float* __restrict__ dbxdt,              // [R, K, E]
    float* __restrict__ dc,                 // [R, 4, N]
    float* __restrict__ dz,                 // [R, DI]
    float* __restrict__ partial,            // [R, V]
    const int R, const int DI, const int K, const int E, const int N, const int CH, const int HD, const int V) {
    const i64 r = blockIdx.x, window = r * K * E;
    dy += r * DI; bxdt += window; c += r * 4 * N; z += r * DI;
    dbxdt += window; dc += r * 4 * N; dz += r * DI; partial += r * V;
    if (profile_shape(K, E, N, DI, HD))
        mixer_last_backward<32>(dy, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, dbxdt, dc,
                                dz, partial, K, E, N, DI, CH, HD);
    else
        mixer_last_backward<0>(dy, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, dbxdt, dc,
                               dz, partial, K, E, N, DI, CH, HD);
}
