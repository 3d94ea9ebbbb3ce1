// `mamba2_last` is for the profiles' shape, `mamba2_last_any` for all others. At 1024 windows of the seed size 82 MB
// move (about 20 us) and 19 M convolution outputs are computed (9 us of exponentials and divisions), so four blocks a
// multiprocessor take turns. For that they hold 16 rows of x each: 24.5 us on an H200, and 26.1 us with all 32 rows and
// three blocks.
#include "mamba2_last.cuh"

constexpr int ROOM = 16;  // rows of x in shared memory

#define ARGS                                                                                                     \
    const float *__restrict__ bxdt, const float *__restrict__ c, const float *__restrict__ z,                    \
        const float *__restrict__ conv_weight, const float *__restrict__ conv_bias,                              \
        const float *__restrict__ dt_bias, const float *__restrict__ a_log, const float *__restrict__ d_skip,    \
        const float *__restrict__ norm_weight, const float eps, float *__restrict__ y, const int R, const int K, \
        const int E, const int N, const int DI, const int CH, const int HD

template <int HD>
__device__ inline void last_row(
    LastWindow<HD, ROOM>& s, const float* u, const float* c, const float* z, const float* conv_weight, const float* conv_bias,
    const float* dt_bias, const float* a_log, const float* d_skip, const float* norm_weight, float eps, float* y) {
    using S = LastWindow<HD, ROOM>;
    constexpr int DI = S::DI, CH = S::CH;
    const int lane = threadIdx.x % 32, h = threadIdx.x / 32, at = h * WIDE + 2 * lane, ch = 2 * WIDE + at;
    s.load(u, c);
    const float dt_shift = dt_bias[h], rate = a_log[h], skip = d_skip[h];
    const float2 gate = at2(z + at);
    const Taps<2> of_c(conv_weight + 2 * lane, conv_bias + 2 * lane, CH);
    const Taps<2> of_b(conv_weight + WIDE + 2 * lane, conv_bias + WIDE + 2 * lane, CH);
    const Taps<2> of_x(conv_weight + ch, conv_bias + ch, CH);
    copies_wait<S::PENDING>();
    __syncthreads();
    const RowDecay row(s.weight[lane * HD + h] + dt_shift, rate);
    last_scores(s, tail_conv(s.c, of_c), of_b);
    __syncthreads();
    float* weight = s.weight + h * ROWS;
    weight[lane] = row.decay * row.dt * s.score[lane] + (lane == ROWS - 1 ? skip : 0.0f);
    float2 g = weighted_rows(s, u, weight, of_x);
    g.x *= gate.x * sigmoid(gate.x);
    g.y *= gate.y * sigmoid(gate.y);
    const float squares = warp_sum(g.x * g.x + g.y * g.y);
    if (lane == 0) s.sums[0][h] = squares;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < HD; ++i) total += s.sums[0][i];
    const float rstd = 1.0f / sqrtf(total / DI + eps);
    const float2 norm = at2(norm_weight + at);
    *(float2*)(y + at) = make_float2(g.x * rstd * norm.x, g.y * rstd * norm.y);
}

extern "C" __global__ void __launch_bounds__(256, 4) mamba2_last(ARGS) {
    extern __shared__ float4 aligned[];
    const i64 r = blockIdx.x;
    bxdt += r * ROWS * E; c += r * 4 * WIDE; z += r * DI; y += r * DI;
    if (HD == 8)
        last_row(
            *(LastWindow<8, ROOM>*)aligned, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, y);
    else
        last_row(
            *(LastWindow<4, ROOM>*)aligned, bxdt, c, z, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, y);
}

extern "C" __global__ void __launch_bounds__(256) mamba2_last_any(ARGS) {
    extern __shared__ float4 aligned[];
    const LastRow s((float*)aligned, K, N, HD, DI);
    const i64 r = blockIdx.x;
    const float* u = bxdt + r * K * E;
    last_weights(s, u, c + r * 4 * N, conv_weight, conv_bias, dt_bias, a_log, K, E, N, DI, CH, HD);
    last_output(s, u, conv_weight, conv_bias, d_skip, K, E, N, DI, CH, HD, [](int, float) {});
    float squares[1] = {};
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const float gate = z[r * DI + i], g = s.out[i] * gate * sigmoid(gate);
        s.out[i] = g;
        squares[0] += g * g;
    }
    block_sums(squares, s.scratch);
    const float rstd = 1.0f / sqrtf(squares[0] / DI + eps);
    for (int i = threadIdx.x; i < DI; i += blockDim.x) y[r * DI + i] = s.out[i] * rstd * norm_weight[i];
}
