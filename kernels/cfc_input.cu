// Three copies side by side, a warp a row, in pieces of 16 bytes where all widths allow it.
#include "pieces.cuh"

#define AHEAD 4  // loads of a thread in flight: a whole row of 512 floats

#define ARGS                                                                                                         \
    const float* __restrict__ enc, const float* __restrict__ private, const float* __restrict__ h_prev,              \
        float* __restrict__ cat, const int R, const int D, const int P, const int H, const int X

template <int N>
__device__ inline void join(ARGS) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (i64 r = (i64)blockIdx.x * warps + threadIdx.x / 32; r < R; r += (i64)gridDim.x * warps) {
        for (int first = lane * N; first < X; first += AHEAD * 32 * N) {
            Piece<N> x[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int c = first + j * 32 * N;
                const float* from = c < D ? enc + r * D + c : c < D + P ? private + r * P + c - D : h_prev + r * H + c - D - P;
                x[j] = c < D + P + H ? load<N>(from) : one_and_zeros<N>(c - D - P - H);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int c = first + j * 32 * N;
                if (c < X) store(cat + r * X + c, x[j]);
            }
        }
    }
}

// enc [R, D], private [R, P], h_prev [R, H] -> cat [R, X], X = D + P + H + 4
extern "C" __global__ void cfc_input(ARGS) {
    if (D % 4 == 0 && P % 4 == 0 && H % 4 == 0) join<4>(enc, private, h_prev, cat, R, D, P, H, X);
    else join<1>(enc, private, h_prev, cat, R, D, P, H, X);
}
