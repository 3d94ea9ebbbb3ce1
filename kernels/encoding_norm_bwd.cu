// One warp a window. A row of whole 16-byte pieces stays in registers, PIECES of them a lane at most.
#include "pieces.cuh"
#include "reduce.cuh"

#define PIECES 4

extern "C" __global__ void encoding_norm_bwd(
    const float* __restrict__ dcat,    // [R, X]
    const float* __restrict__ res,     // [R, D]
    const float* __restrict__ rstd,    // [R]
    const float* __restrict__ weight,  // [D]
    float* __restrict__ dres,          // [R, 1, D]
    float* __restrict__ partial,       // [R, D]
    const int R, const int X, const int D) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= R) return;
    const float *dn = dcat + row * X, *u = res + row * D;
    const float r = rstd[row];
    float inner = 0.0f;
    if (D % 4 == 0 && X % 4 == 0 && D <= 128 * PIECES) {
        Piece<4> d[PIECES], v[PIECES], w[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int c = 4 * (lane + 32 * i);
            d[i] = v[i] = w[i] = {};
            if (c < D) { d[i] = load<4>(dn + c); v[i] = load<4>(u + c); w[i] = load<4>(weight + c); }
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                v[i][k] *= r;
                inner += d[i][k] * v[i][k] * w[i][k];
            }
        const float mean = -warp_sum(inner) / D;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int c = 4 * (lane + 32 * i);
            if (c >= D) break;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                w[i][k] = (d[i][k] * w[i][k] + v[i][k] * mean) * r;
                d[i][k] *= v[i][k];
            }
            store(dres + row * D + c, w[i]);
            store(partial + row * D + c, d[i]);
        }
        return;
    }
#pragma unroll 4
    for (int c = lane; c < D; c += 32) inner += dn[c] * (u[c] * r) * weight[c];
    const float mean = -warp_sum(inner) / D;
#pragma unroll 4
    for (int c = lane; c < D; c += 32) {
        const float v = u[c] * r;
        dres[row * D + c] = (dn[c] * weight[c] + v * mean) * r;
        partial[row * D + c] = dn[c] * v;
    }
}
