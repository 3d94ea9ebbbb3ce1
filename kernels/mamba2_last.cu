// One block a window, one warp a head. At 1024 windows of the seed size it reads 76 MB (about 20 us of bandwidth) and
// computes 19 M convolution outputs, each used once as it comes: nothing of x is kept.
#include "mamba2_last.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) mamba2_last(
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
    float* __restrict__ y,                  // [R, DI]
    const int R, const int K, const int E, const int N, const int DI, const int CH, const int HD) {
    extern __shared__ float shared[];
    const LastRow s(shared, K, N, HD, DI);
    const i64 r = blockIdx.x;
    const float* u = bxdt + r * K * E;
    const Early gates(z + r * DI, DI);
    if (profile_shape(K, E, N, DI, HD)) {
        last_weights<32>(s, u, c + r * 4 * N, conv_weight, conv_bias, dt_bias, a_log, K, E, N, DI, CH, HD);
        last_output<32, false>(s, u, conv_weight, conv_bias, d_skip, K, E, N, DI, CH, HD, [](const ConvRow<2>&, int) {});
    } else {
        last_weights<0>(s, u, c + r * 4 * N, conv_weight, conv_bias, dt_bias, a_log, K, E, N, DI, CH, HD);
        last_output<0, false>(s, u, conv_weight, conv_bias, d_skip, K, E, N, DI, CH, HD, [](const ConvRow<1>&, int) {});
    }
    float squares[1] = {};
    for (int i = threadIdx.x; i < DI; i += blockDim.x) {
        const float gate = gates.at(i), g = s.out[i] * gate * sigmoid(gate);
        s.out[i] = g;
        squares[0] += g * g;
    }
    block_sums(squares, s.scratch);
    const float rstd = 1.0f / sqrtf(squares[0] / DI + eps);
    for (int i = threadIdx.x; i < DI; i += blockDim.x) y[r * DI + i] = s.out[i] * rstd * norm_weight[i];
}
