// `mamba2_last_bwd` is for the profiles' shape, `mamba2_last_bwd_any` for all others. At 1024 windows of the seed size 178 MB
// move (about 42 us). The first sweeps over x's rows for the output, and once more for all that needs the output's gradient
// dY; the second computes the convolution again from shared memory: 32 rows of it take too many registers to be kept.
#include "mamba2_last.cuh"

#define ARGS                                                                                                       \
    const float *__restrict__ dy, const float *__restrict__ bxdt, const float *__restrict__ c,                     \
        const float *__restrict__ z, const float *__restrict__ conv_weight, const float *__restrict__ conv_bias,   \
        const float *__restrict__ dt_bias, const float *__restrict__ a_log, const float *__restrict__ d_skip,      \
        const float *__restrict__ norm_weight, const float eps, float *__restrict__ dbxdt, float *__restrict__ dc, \
        float *__restrict__ dz, float *__restrict__ partial, const int R, const int DI, const int K, const int E,  \
        const int N, const int CH, const int HD, const int V

__device__ inline void store2(float* p, float2 v) { *(float2*)p = v; }

// What a lane sums over rows for the gradients of taps and bias of its two channels.
struct TapSums {
    float2 w[4], bias;
};

// Backward of one row's convolution of two channels. in: inputs from three rows before it on; d: gradient before SiLU of it
// and of the three rows after. Writes du.
__device__ inline void conv2_backward(const Taps<2>& taps, const float2* in, const float2* d, float* du, TapSums& sums) {
    float2 out = make_float2(taps.w[3].v[0] * d[0].x, taps.w[3].v[1] * d[0].y);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        sums.w[j].x += d[0].x * in[j].x;
        sums.w[j].y += d[0].y * in[j].y;
        if (j > 0) add_product(out, taps.w[3 - j], d[j]);
    }
    sums.bias.x += d[0].x;
    sums.bias.y += d[0].y;
    store2(du, out);
}

// The rows of x from the last to the first: with dY, their gradients and q [32] = dY . x_k. x, du: the lane's channels at
// row 0; scale [32]: the rows' weights.
template <int E>
__device__ inline TapSums last_rows_backward(
    const float* x, const float* scale, float2 dy, const Taps<2>& taps, float* du, float* q) {
    TapSums sums = {};
    float2 in[AHEAD + 3], d[AHEAD + 3] = {};
    x += (ROWS - AHEAD) * WIDE; scale += ROWS - AHEAD; du += (ROWS - AHEAD) * E; q += ROWS - AHEAD;
#pragma unroll
    for (int i = 0; i < 3; ++i) in[i] = at2(x + (AHEAD - 3 + i) * WIDE);
#pragma unroll 1  // code that does not fit the instruction cache costs more
    for (int first = ROWS - AHEAD; first >= 0; first -= AHEAD) {
#pragma unroll
        for (int i = 0; i < 3; ++i) { in[AHEAD + i] = in[i]; d[AHEAD + i] = d[i]; }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) in[i] = first + i >= 3 ? at2(x + (i - 3) * WIDE) : make_float2(0.0f, 0.0f);
        float terms[AHEAD];
#pragma unroll
        for (int i = AHEAD - 1; i >= 0; --i) {
            const float2 pre = conv2(taps, in[i], in[i + 1], in[i + 2], in[i + 3]);
            const float2 gate = make_float2(sigmoid(pre.x), sigmoid(pre.y));
            const float2 value = make_float2(pre.x * gate.x, pre.y * gate.y);
            terms[i] = dy.x * value.x + dy.y * value.y;
            d[i] = make_float2(scale[i] * dy.x * silu_slope(value.x, gate.x), scale[i] * dy.y * silu_slope(value.y, gate.y));
            conv2_backward(taps, in + i, d + i, du + i * E, sums);
        }
        const float sum = many_sums(terms);
        if (threadIdx.x % (32 / AHEAD) == 0) q[threadIdx.x % 32 / (32 / AHEAD)] = sum;
        x -= AHEAD * WIDE; scale -= AHEAD; du -= AHEAD * E; q -= AHEAD;
    }
    return sums;
}

// The rows of B, EACH at a time and with the three after them computed once more, so that every warp has some. dscore: of
// row `lane`; cs: the lane's channels of C. Returns the lane's parts of the sums; dcs: of the gradient of C.
template <int HD>
__device__ inline TapSums last_scores_backward(
    const LastWindow<HD, ROWS>& s, float dscore, float2 cs, const Taps<2>& taps, float* du, float2& dcs) {
    constexpr int E = LastWindow<HD, ROWS>::E;
    const int lane = threadIdx.x % 32;
    TapSums sums = {};
    dcs = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int round = 0; round < ROWS / (HD * EACH); ++round) {
        const int first = (round * HD + threadIdx.x / 32) * EACH;
        const float* rows = s.b + first * WIDE + 2 * lane;
        float2 in[EACH + 6], d[EACH + 3];
#pragma unroll
        for (int i = 0; i < EACH + 6; ++i) {
            const bool there = (i >= 3 || first + i >= 3) && (i < EACH + 3 || first + i < ROWS + 3);
            in[i] = there ? at2(rows + (i - 3) * WIDE) : make_float2(0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < EACH + 3; ++i) {
            const float of_row = __shfl_sync(~0u, dscore, (first + i) % ROWS);
            const float scale = i < EACH || first + i < ROWS ? of_row : 0.0f;
            const float2 pre = conv2(taps, in[i], in[i + 1], in[i + 2], in[i + 3]);
            const float2 gate = make_float2(sigmoid(pre.x), sigmoid(pre.y));
            const float2 value = make_float2(pre.x * gate.x, pre.y * gate.y);
            d[i] = make_float2(scale * cs.x * silu_slope(value.x, gate.x), scale * cs.y * silu_slope(value.y, gate.y));
            if (i >= EACH) continue;
            dcs.x += scale * value.x;
            dcs.y += scale * value.y;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) conv2_backward(taps, in + i, d + i, du + (first + i) * E + 2 * lane, sums);
    }
    return sums;
}

// The gradients of C's four rows and of C's taps and bias at channel n, from that of its convolution at the last row.
__device__ inline void tail_backward(
    const float* c, const float* conv_weight, const float* conv_bias, float dcs, float* dc, float* partial, float* dbias,
    int n, int N, int CH) {
    const float pre = tail_pre(c, conv_weight, conv_bias, n, N, CH), gate = sigmoid(pre);
    const float dpre = dcs * silu_slope(pre * gate, gate);
    for (int j = 0; j < 4; ++j) {
        dc[j * N + n] = conv_weight[j * CH + n] * dpre;
        partial[j * CH + n] = c[j * N + n] * dpre;
    }
    dbias[n] = dpre;
}

template <int HD>
__device__ inline void last_row_backward(
    LastWindow<HD, ROWS>& s, const float* dy, const float* u, const float* c, const float* z, const float* conv_weight,
    const float* conv_bias, const float* dt_bias, const float* a_log, const float* d_skip, const float* norm_weight,
    float eps, float* du, float* dc, float* dz, float* partial) {
    using S = LastWindow<HD, ROWS>;
    constexpr int DI = S::DI, CH = S::CH, E = S::E;
    const int lane = threadIdx.x % 32, h = threadIdx.x / 32, at = h * WIDE + 2 * lane, ch = 2 * WIDE + at;
    float *weight = s.weight + h * ROWS, *q = s.c + h * ROWS;  // q [HD, 32] comes into the place of C's rows
    const Places where(CH, HD, DI);

    s.load(u, c);
    const float dt_shift = dt_bias[h], log_rate = a_log[h], skip = d_skip[h];
    const float2 gate = at2(z + at), dout = at2(dy + at), norm = at2(norm_weight + at);
    const Taps<2> of_x(conv_weight + ch, conv_bias + ch, CH);
    copies_wait<S::PENDING>();
    __syncthreads();
    const float raw = s.weight[lane * HD + h] + dt_shift;
    const RowDecay row(raw, log_rate);
    const float2 cs = tail_conv(s.c, Taps<2>(conv_weight + 2 * lane, conv_bias + 2 * lane, CH));
    if (h == 0) store2(s.state + 2 * lane, cs);
    last_scores(s, cs, Taps<2>(conv_weight + WIDE + 2 * lane, conv_bias + WIDE + 2 * lane, CH));
    __syncthreads();
    weight[lane] = row.decay * row.dt * s.score[lane] + (lane == ROWS - 1 ? skip : 0.0f);
    const float2 y = weighted_rows(s, u, weight, of_x);

    const float2 g = make_float2(y.x * gate.x * sigmoid(gate.x), y.y * gate.y * sigmoid(gate.y));
    const float squares = warp_sum(g.x * g.x + g.y * g.y), along = warp_sum(dout.x * norm.x * g.x + dout.y * norm.y * g.y);
    if (lane == 0) { s.sums[0][h] = squares; s.sums[1][h] = along; }
    __syncthreads();
    float total = 0.0f, total_along = 0.0f;
    for (int i = 0; i < HD; ++i) { total += s.sums[0][i]; total_along += s.sums[1][i]; }
    const float rstd = 1.0f / sqrtf(total / DI + eps), mean_r = rstd * total_along / DI;
    const NormGrad first(dout.x, y.x, gate.x, norm.x, rstd, mean_r), second(dout.y, y.y, gate.y, norm.y, rstd, mean_r);
    store2(dz + at, make_float2(first.dz, second.dz));
    store2(partial + where.norm + at, make_float2(first.dweight, second.dweight));

    const TapSums sums =
        last_rows_backward<E>(s.x[h] + 2 * lane, weight, make_float2(first.dy, second.dy), of_x, du + WIDE + at, q);
#pragma unroll
    for (int j = 0; j < 4; ++j) store2(partial + j * CH + ch, sums.w[j]);
    store2(partial + where.conv_bias + ch, sums.bias);
    if (threadIdx.x < 64) where.clear_padding(partial, CH, HD, DI);

    // A lane a row. da_k = sum_{j < k} q_j w_j, the gradient of the row's log decay.
    __syncwarp();
    const float of_row = q[lane], to_dt = of_row * row.decay * s.score[lane];
    float before = to_dt * row.dt;
    for (int o = 1; o < 32; o *= 2) {
        const float more = __shfl_up_sync(~0u, before, o);
        if (lane >= o) before += more;
    }
    before = __shfl_up_sync(~0u, before, 1);
    const float da = lane ? -expf(log_rate) * before : 0.0f, ddt = (to_dt + da) * sigmoid(raw);
    const float bias_sum = warp_sum(ddt), rate_sum = warp_sum(da * row.dt);
    if (lane == 0) { partial[where.dt_bias + h] = bias_sum; partial[where.a_log + h] = rate_sum; }
    if (lane == ROWS - 1) partial[where.d_skip + h] = of_row;  // dY . x of the last row
    weight[lane] = ddt;
    q[lane] = of_row * row.decay * row.dt;
    __syncthreads();

    if (h == 0)
        for (int i = 0; i < HD; i += 4) {
            const float* d = s.weight + i * ROWS + lane;
            *(float4*)(du + lane * E + WIDE + DI + i) = make_float4(d[0], d[ROWS], d[2 * ROWS], d[3 * ROWS]);
        }
    float dscore = 0.0f;
    for (int i = 0; i < HD; ++i) dscore += s.c[i * ROWS + lane];
    float2 dcs;
    const Taps<2> of_b(conv_weight + WIDE + 2 * lane, conv_bias + WIDE + 2 * lane, CH);
    const TapSums parts = last_scores_backward(s, dscore, at2(s.state + 2 * lane), of_b, du, dcs);
    float* own = s.x[h] + 2 * lane;  // [6, 64] in the place of the warp's rows of x
    store2(own, dcs);
#pragma unroll
    for (int j = 0; j < 4; ++j) store2(own + (1 + j) * WIDE, parts.w[j]);
    store2(own + 5 * WIDE, parts.bias);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < 6 * WIDE; i += S::THREADS) {
        float sum = 0.0f;
        for (int from = 0; from < HD; ++from) sum += s.x[from][i];
        const int n = i % WIDE, j = i / WIDE;
        if (j == 0) tail_backward(c, conv_weight, conv_bias, sum, dc, partial, partial + where.conv_bias, n, WIDE, CH);
        else partial[(j < 5 ? (j - 1) * CH : where.conv_bias) + WIDE + n] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256, 3) mamba2_last_bwd(ARGS) {
    extern __shared__ float4 aligned[];
    const i64 r = blockIdx.x;
    dy += r * DI; bxdt += r * ROWS * E; c += r * 4 * WIDE; z += r * DI;
    dbxdt += r * ROWS * E; dc += r * 4 * WIDE; dz += r * DI; partial += r * V;
    if (HD == 8)
        last_row_backward(
            *(LastWindow<8, ROWS>*)aligned, dy, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps,
            dbxdt, dc, dz, partial);
    else
        last_row_backward(
            *(LastWindow<4, ROWS>*)aligned, dy, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps,
            dbxdt, dc, dz, partial);
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
            for_conv_rows<1, 0>(u + N + at, E, K, taps, [&](const ConvRow<1>& x) {
                const float sum = warp_sum(d * x.value.v[0]);
                if (lane == 0) q[h * K + x.k] = p0 ? q[h * K + x.k] + sum : sum;
            });
        }
}

// Three passes over x's channels: output, dY . x, gradients.
extern "C" __global__ void __launch_bounds__(288, 2) mamba2_last_bwd_any(ARGS) {
    extern __shared__ float4 aligned[];
    float *x_last = (float*)aligned, *dout = x_last + DI;
    const LastRow s(dout + DI, K, N, HD, DI);
    float *q = s.end, *dscore = q + K * HD;
    const Places where(CH, HD, DI);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, P = DI / HD;
    const i64 r = blockIdx.x, window = r * K * E;
    dy += r * DI; bxdt += window; c += r * 4 * N; z += r * DI;
    dbxdt += window; dc += r * 4 * N; dz += r * DI; partial += r * V;
    last_weights(s, bxdt, c, conv_weight, conv_bias, dt_bias, a_log, K, E, N, DI, CH, HD);
    last_output(s, bxdt, conv_weight, conv_bias, d_skip, K, E, N, DI, CH, HD, [&](int i, float value) { x_last[i] = value; });

    float sums[2] = {};  // of g^2 and of dout weight g
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const float g = s.out[i] * z[i] * sigmoid(z[i]);
        sums[0] += g * g;
        sums[1] += dy[i] * norm_weight[i] * g;
    }
    block_sums(sums, s.scratch);
    const float rstd = 1.0f / sqrtf(sums[0] / DI + eps), mean_r = rstd * sums[1] / DI;
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const NormGrad grad(dy[i], s.out[i], z[i], norm_weight[i], rstd, mean_r);
        dout[i] = grad.dy;
        dz[i] = grad.dz;
        partial[where.norm + i] = grad.dweight;
    }
    where.clear_padding(partial, CH, HD, DI);
    __syncthreads();

    project(bxdt, conv_weight, conv_bias, dout, q, K, E, N, DI, CH, HD);
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
            const float raw = bxdt[(i64)k * E + N + DI + h] + dt_bias[h];
            const float ddt = (q[i] * s.decay[i] * s.score[k] + da) * sigmoid(raw);
            dbxdt[(i64)k * E + N + DI + h] = ddt;
            bias_sum += ddt;
            rate_sum += da * s.dt[i];
        }
        for (int p = lane; p < P; p += 32) skip_sum += dout[h * P + p] * x_last[h * P + p];
        bias_sum = warp_sum(bias_sum); rate_sum = warp_sum(rate_sum); skip_sum = warp_sum(skip_sum);
        if (lane == 0) {
            partial[where.dt_bias + h] = bias_sum;
            partial[where.a_log + h] = rate_sum;
            partial[where.d_skip + h] = skip_sum;
        }
    }
    __syncthreads();

    const int blocks = (N + 31) / 32;  // of B's channels; they come after the heads
    for (int task = warp; task < HD + blocks; task += warps) {
        const bool of_x = task < HD;
        const int first = of_x ? N + task * P : 0, stop = of_x ? first + P : N;
        for (int n = first + (of_x ? 0 : (task - HD) * 32) + lane; n < stop; n += of_x ? 32 : N) {
            const int ch = N + n;
            const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
            const float factor = of_x ? dout[n - N] : s.cs[n];
            float dcs = 0.0f;
            conv_backward<1, 0>(bxdt + n, E, K, taps, [&](const ConvRow<1>& row) {
                float scale = of_x ? s.weight[task * K + row.k] : dscore[row.k];
                if (of_x && row.k == K - 1) scale += d_skip[task];
                dcs += scale * row.value.v[0];
                return Piece<1>{scale * factor};
            }, dbxdt + n, partial + ch, partial + where.conv_bias + ch, CH);
            if (!of_x) tail_backward(c, conv_weight, conv_bias, dcs, dc, partial, partial + where.conv_bias, n, N, CH);
        }
    }
}
