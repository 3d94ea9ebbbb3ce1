// Backward of RMSNorm over a window of K rows, one block a window: gradient of the rows, and the window's sums of it
// (SUM_ROWS: where the rows had a bias) and of the weight's gradient. kernels/rms.py: rms_backward() is the definition.
#pragma once
#include "rms.cuh"

// Pointers of one window: dn, u, du [K, D], dres [J, D] (of the last J rows), rstd [K], sums and dweight [D].
struct Window {
    const float *dn, *dres, *u, *rstd, *weight;
    float *du, *sums, *dweight;
    int K, J, D;
};

// out[c] = sum over the warps of own[], in the order of the warps. `shared` holds [warps, D].
template <int PIECES>
__device__ inline void sum_warps(const float4 (&own)[PIECES], float4* shared, float4* out, int width) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
        if (lane + 32 * i < width) shared[warp * width + lane + 32 * i] = own[i];
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        float4 sum = shared[c];
        for (int w = 1; w < warps; ++w) sum = sum + shared[w * width + c];
        out[c] = sum;
    }
}

// Warps take rows in turn and keep their sums in registers, so every value is read once.
template <int PIECES, bool SUM_ROWS>
__device__ inline void window_bwd_pieces(const Window& win, float4* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, width = win.D / 4;
    float4 weight[PIECES], dweight[PIECES], sums[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const int c = lane + 32 * i;
        weight[i] = c < width ? ((const float4*)win.weight)[c] : zeros();
        dweight[i] = sums[i] = zeros();
    }
    for (int k = warp; k < win.K; k += warps) {
        const float4 *dn = (const float4*)win.dn + k * width, *u = (const float4*)win.u + k * width;
        const float4* dres = k < win.K - win.J ? nullptr : (const float4*)win.dres + (k - win.K + win.J) * width;
        float4 *du = (float4*)win.du + k * width, g[PIECES], v[PIECES], skip[PIECES];
        const float r = win.rstd[k];
        float inner = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int c = lane + 32 * i;
            g[i] = c < width ? dn[c] : zeros();
            v[i] = c < width ? u[c] : zeros();
            skip[i] = dres && c < width ? dres[c] : zeros();
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            v[i] = v[i] * r;
            const float4 dw = g[i] * v[i];
            dweight[i] = dweight[i] + dw;
            inner += dot(dw, weight[i]);
        }
        const float mean = -warp_sum(inner) / win.D;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int c = lane + 32 * i;
            const float4 d = (g[i] * weight[i] + v[i] * mean) * r + skip[i];
            if (c < width) du[c] = d;
            if (SUM_ROWS) sums[i] = sums[i] + d;
        }
    }
    sum_warps(dweight, shared, (float4*)win.dweight, width);
    if (SUM_ROWS) sum_warps(sums, shared, (float4*)win.sums, width);
}

// Any width: a warp a row for the means, then a thread a column; the second reading comes out of the caches.
template <bool SUM_ROWS>
__device__ inline void window_bwd_floats(const Window& win, float* mean) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, D = win.D;
    for (int k = warp; k < win.K; k += warps) {
        float inner = 0.0f;
        for (int c = lane; c < D; c += 32) inner += win.dn[k * D + c] * (win.u[k * D + c] * win.rstd[k]) * win.weight[c];
        inner = warp_sum(inner);
        if (lane == 0) mean[k] = -inner / D;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += blockDim.x) {
        const float weight = win.weight[c];
        float dweight = 0.0f, sums = 0.0f;
        for (int k = 0; k < win.K; ++k) {
            const float r = win.rstd[k], g = win.dn[k * D + c], v = win.u[k * D + c] * r;
            const float skip = k < win.K - win.J ? 0.0f : win.dres[(k - win.K + win.J) * D + c];
            const float d = (g * weight + v * mean[k]) * r + skip;
            win.du[k * D + c] = d;
            dweight += g * v;
            sums += d;
        }
        win.dweight[c] = dweight;
        if (SUM_ROWS) win.sums[c] = sums;
    }
}

// `shared` holds what kernels/rms.py: window_launcher() asks for.
template <bool SUM_ROWS>
__device__ inline void window_bwd(const Window& win, float* shared) {
    if (win.D % 4 == 0 && win.D <= PIECES_WIDTH)
        window_bwd_pieces<PIECES_WIDTH / 128, SUM_ROWS>(win, (float4*)shared);
    else
        window_bwd_floats<SUM_ROWS>(win, shared);
}
