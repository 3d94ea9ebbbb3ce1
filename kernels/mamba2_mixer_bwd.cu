// `mamba2_mixer_bwd` is for the profiles' shape (mamba2_window.cuh), `mamba2_mixer_bwd_any` for all others. At 1024
// windows of the seed size the first moves 390 MB (about 95 us) and computes 1.7 G multiply-adds, of which the mask spares
// a third. One block of 16 warps a multiprocessor: x and dY of a window fill its shared memory.
#include "mamba2_any.cuh"
#include "mamba2_window.cuh"

#define ARGS                                                                                                       \
    const float *__restrict__ dy, const float *__restrict__ zcbxdt, const float *__restrict__ conv_weight,         \
        const float *__restrict__ conv_bias, const float *__restrict__ dt_bias, const float *__restrict__ a_log,   \
        const float *__restrict__ d_skip, const float *__restrict__ norm_weight, const float eps, float *dzcbxdt,  \
        float *__restrict__ partial, const int R, const int K, const int DI, const int E, const int CH, const int HD, \
        const int V

constexpr int GS = ROWS + 4;      // row stride of scores and their gradient
constexpr int MS = ROWS / 2 + 4;  // of the masked matrix's chunks: 16 rows of one warp

// The two warps of head h wait for each other.
__device__ inline void pair_sync(int h) { asm volatile("bar.sync %0, 64;" ::"r"(h + 1) : "memory"); }

// acc[i][j] += m[i] x[j] for rows i of [FIRST, LAST).
template <int FIRST, int LAST>
__device__ inline void outer(float (&acc)[4][8], float4 m, float4 x0, float4 x1) {
    const float mi[4] = {m.x, m.y, m.z, m.w}, xj[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
    for (int i = FIRST; i < LAST; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] += mi[i] * xj[j];
}

// Two warps a head, for its even and its odd rows. A lane keeps 4 rows (odd + 2 r + 8 i) by 8 columns (4 c .., 32 + 4 c ..)
// of Y, dY and dx, and the same rows by 4 columns (c + 8 j) of a masked matrix.
extern "C" __global__ void __launch_bounds__(512, 1) mamba2_mixer_bwd(ARGS) {
    extern __shared__ float4 aligned[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp / 2, odd = warp % 2, r = lane / 8, c = lane % 8;
    const int row0 = odd + 2 * r, col0 = h * WIDE + 4 * c, XS = DI + 4;
    float* x = (float*)aligned;       // [32, XS]; later a head's part of the scores' gradient, then dC and dB
    float* g = x + ROWS * XS;         // [32, XS] dY, later dx
    float* cs = g + ROWS * XS;        // [32, CB]
    float* bs = cs + ROWS * CB;       // [32, CB]
    float* score = bs + ROWS * CB;    // [32, GS], later their gradient
    float* chunks = score + ROWS * GS;  // [2 HD, 8, MS], later the scores' gradient transposed [32, GS]
    float* m = chunks + warp * 8 * MS;
    float* vectors = chunks + max(2 * HD * 8 * MS, ROWS * GS);
    float* dt = vectors + h * ROWS;                                       // [HD, 32]
    float2* prefix = (float2*)(vectors + HD * ROWS) + h * ROWS;           // [HD, 32]
    float* sums = vectors + 3 * HD * ROWS;                                // [2, HD, 32] of g^2, of dout weight g
    float* column = vectors + 5 * HD * ROWS;                              // [2, HD, 32] below the diagonal, by odd
    float* row = vectors + 7 * HD * ROWS + h * ROWS;                      // [HD, 32] left of the diagonal
    float* diagonal = vectors + 8 * HD * ROWS + h * ROWS;                 // [HD, 32]
    float* skips = vectors + 9 * HD * ROWS;                               // [2 HD] gradient of D
    float* dnorm = skips + 2 * HD;                                        // [2, DI]

    const i64 first_row = (i64)blockIdx.x * ROWS;
    const float *window = zcbxdt + first_row * E, *dout = dy + first_row * DI + col0, *z = window + col0;
    float *dwindow = dzcbxdt + first_row * E, *grads = partial + (i64)blockIdx.x * V;
    const Places at(CH, HD, DI);
    const Channels channels = {cs, bs, x, XS};
    load_window(window + DI, E, channels, CH);
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // dout waits where dY will be
        const int t = row0 + i / 2 * 8, n = i % 2 * 32;
        copy_async(g + t * XS + col0 + n, dout + t * DI + n);
    }
    copies_end();
    const float raw = window[(i64)lane * E + DI + CH + h] + dt_bias[h], rate = -expf(a_log[h]);
    prefetch_rows(window, E, DI / 32, ROWS);  // the gate
    conv_window<1>(conv_weight, conv_bias, channels, CH);
    if (!odd) decay_prefix(raw, a_log[h], dt, prefix);
    __syncthreads();
    scores<GS>(cs, bs, score);
    __syncthreads();

    // Y = M x + D x.
    const float *xh = x + col0, *gh = g + col0;
    const float skip = d_skip[h];
    float2 to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = prefix[row0 + 8 * i];
    float acc[4][8] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {  // 8 columns of M at a time; rows before them are zero
        __syncwarp();
        const int k = 8 * q + c;
        const float2 from = prefix[k];
        float v[4] = {};
#pragma unroll
        for (int i = q; i < 4; ++i) {
            const int t = row0 + 8 * i;
            v[i] = t >= k ? score[t * GS + k] * decay_between(to[i], from) * dt[k] : 0.0f;
        }
        *(float4*)(m + c * MS + r * 4) = make_float4(v[0], v[1], v[2], v[3]);
        __syncwarp();
#pragma unroll 4
        for (int j = 0; j < 8; ++j) {
            const float4 mj = at4(m + j * MS + r * 4), x0 = at4(xh + (8 * q + j) * XS), x1 = at4(xh + (8 * q + j) * XS + 32);
            if (q == 0) outer<0, 4>(acc, mj, x0, x1);
            if (q == 1) outer<1, 4>(acc, mj, x0, x1);
            if (q == 2) outer<2, 4>(acc, mj, x0, x1);
            if (q == 3) outer<3, 4>(acc, mj, x0, x1);
        }
    }

    // The gated norm, first its two sums over whole rows.
    copies_wait<0>();
    float gate[4][8], weight[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) weight[j] = norm_weight[col0 + j % 4 + j / 4 * 32];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = row0 + 8 * i;
        float squares = 0.0f, product = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 zt = at4(z + (i64)t * E + 32 * half), d = at4(gh + t * XS + 32 * half);
            const float4 xt = at4(xh + t * XS + 32 * half);
            const float zj[4] = {zt.x, zt.y, zt.z, zt.w}, dj[4] = {d.x, d.y, d.z, d.w}, xj[4] = {xt.x, xt.y, xt.z, xt.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float& yj = acc[i][4 * half + j];
                yj += skip * xj[j];
                gate[i][4 * half + j] = zj[j];
                const float v = yj * zj[j] * sigmoid(zj[j]);
                squares += v * v;
                product += dj[j] * weight[4 * half + j] * v;
            }
        }
        for (int o = 1; o < 8; o *= 2) {
            squares += __shfl_xor_sync(~0u, squares, o);
            product += __shfl_xor_sync(~0u, product, o);
        }
        if (c == 0) {
            sums[h * ROWS + t] = squares;
            sums[(HD + h) * ROWS + t] = product;
        }
    }
    __syncthreads();
    float total = 0.0f;  // lane < 16: squares of row odd + 2 lane; else the products of row odd + 2 (lane - 16)
    for (int head = 0; head < HD; ++head) total += sums[(lane / 16 * HD + head) * ROWS + odd + lane % 16 * 2];
    if (lane < 16) total = 1.0f / sqrtf(total / DI + eps);
    float dweight[8] = {}, dskip = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = row0 + 8 * i;
        const float rstd = __shfl_sync(~0u, total, r + 4 * i), mean_r = rstd * __shfl_sync(~0u, total, 16 + r + 4 * i) / DI;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* slot = g + t * XS + col0 + 32 * half;
            const float4 d = at4(slot), xt = at4(xh + t * XS + 32 * half);
            const float dj[4] = {d.x, d.y, d.z, d.w}, xj[4] = {xt.x, xt.y, xt.z, xt.w};
            float dz[4], dyj[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int n = 4 * half + j;
                const NormGrad grad(dj[j], acc[i][n], gate[i][n], weight[n], rstd, mean_r);
                dz[j] = grad.dz;
                dyj[j] = grad.dy;
                dweight[n] += grad.dweight;
                dskip += grad.dy * xj[j];
            }
            *(float4*)(dwindow + (i64)t * E + col0 + 32 * half) = make_float4(dz[0], dz[1], dz[2], dz[3]);
            *(float4*)slot = make_float4(dyj[0], dyj[1], dyj[2], dyj[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        dweight[n] += __shfl_xor_sync(~0u, dweight[n], 8);
        dweight[n] += __shfl_xor_sync(~0u, dweight[n], 16);
    }
    if (r == 0) {
        float* to_norm = dnorm + odd * DI + col0;
        *(float4*)to_norm = make_float4(dweight[0], dweight[1], dweight[2], dweight[3]);
        *(float4*)(to_norm + 32) = make_float4(dweight[4], dweight[5], dweight[6], dweight[7]);
    }
    dskip = warp_sum(dskip);
    if (lane == 0) skips[warp] = dskip;
    pair_sync(h);

    // dx = M^T dY + D dY; a lane's rows are now rows of x.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 d0 = at4(gh + (row0 + 8 * i) * XS), d1 = at4(gh + (row0 + 8 * i) * XS + 32);
        acc[i][0] = skip * d0.x; acc[i][1] = skip * d0.y; acc[i][2] = skip * d0.z; acc[i][3] = skip * d0.w;
        acc[i][4] = skip * d1.x; acc[i][5] = skip * d1.y; acc[i][6] = skip * d1.z; acc[i][7] = skip * d1.w;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {  // 8 rows of M at a time; columns after them are zero
        __syncwarp();
        const int t = 8 * q + c;
        const float2 end = prefix[t];
        float v[4] = {};
#pragma unroll
        for (int i = 0; i <= q; ++i) {
            const int k = row0 + 8 * i;
            v[i] = t >= k ? score[t * GS + k] * decay_between(end, to[i]) * dt[k] : 0.0f;
        }
        *(float4*)(m + c * MS + r * 4) = make_float4(v[0], v[1], v[2], v[3]);
        __syncwarp();
#pragma unroll 4
        for (int j = 0; j < 8; ++j) {
            const float4 mj = at4(m + j * MS + r * 4), d0 = at4(gh + (8 * q + j) * XS), d1 = at4(gh + (8 * q + j) * XS + 32);
            if (q == 0) outer<0, 1>(acc, mj, d0, d1);
            if (q == 1) outer<0, 2>(acc, mj, d0, d1);
            if (q == 2) outer<0, 3>(acc, mj, d0, d1);
            if (q == 3) outer<0, 4>(acc, mj, d0, d1);
        }
    }

    // Q = dY x^T on and below the diagonal.
    float q[4][4] = {};
#pragma unroll 2
    for (int p = 0; p < WIDE; p += 4) {
        float4 d[4], xk[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            d[i] = at4(g + (row0 + 8 * i) * XS + h * WIDE + p);
            xk[i] = at4(x + (c + 8 * i) * XS + h * WIDE + p);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j <= i; ++j) q[i][j] = dot4(d[i], xk[j], q[i][j]);
    }
    // Q L dt is this head's gradient of the scores; Q L score that of dt, beside its part through the decay.
    float below[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = row0 + 8 * i;
        float left = 0.0f;
#pragma unroll
        for (int j = 0; j <= i; ++j) {
            const int k = c + 8 * j;
            const float ql = t >= k ? q[i][j] * decay_between(to[i], prefix[k]) : 0.0f, w = ql * score[t * GS + k];
            q[i][j] = ql * dt[k];
            if (t == k) diagonal[k] = w;
            if (t > k) {
                below[j] += w;
                left += w * dt[k];
            }
        }
        for (int o = 1; o < 8; o *= 2) left += __shfl_xor_sync(~0u, left, o);
        if (c == 0) row[t] = left;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        below[j] += __shfl_xor_sync(~0u, below[j], 8);
        below[j] += __shfl_xor_sync(~0u, below[j], 16);
        if (r == 0) column[(odd * HD + h) * ROWS + c + 8 * j] = below[j];
    }
    pair_sync(h);  // x and dY of this head have been read
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float *to_x = g + (row0 + 8 * i) * XS + col0, *to_part = x + (row0 + 8 * i) * XS + h * WIDE + c;
        *(float4*)to_x = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        *(float4*)(to_x + 32) = make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
#pragma unroll
        for (int j = 0; j < 4; ++j) to_part[8 * j] = q[i][j];
    }
    pair_sync(h);
    {  // through x's SiLU and convolution, a lane a channel
        const int column = h * WIDE + odd * 32 + lane, ch = 2 * WIDE + column;
        const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
        conv_backward<1, ROWS>(window + DI + ch, E, ROWS, taps,
                               [&](const ConvRow<1>& now) { return load<1>(g + now.k * XS + column); },
                               dwindow + DI + ch, grads + ch, grads + at.conv_bias + ch, CH);
    }
    if (!odd) {
        // A lane a row. Moving from row j to j + 1, the pairs k < j <= t lose row j and gain column j.
        const float sum = column[h * ROWS + lane] + column[(HD + h) * ROWS + lane], step = dt[lane];
        double pairs = (double)(sum * step) - (double)row[lane];
        for (int o = 1; o < 32; o *= 2) {
            const double before = __shfl_up_sync(~0u, pairs, o);
            if (lane >= o) pairs += before;
        }
        pairs = __shfl_up_sync(~0u, pairs, 1);
        const float da = lane ? (float)pairs * rate : 0.0f;
        const float draw = (sum + diagonal[lane] + da) * sigmoid(raw);
        dwindow[(i64)lane * E + DI + CH + h] = draw;
        const float bias_sum = warp_sum(draw), rate_sum = warp_sum(da * step);
        if (lane == 0) {
            grads[at.dt_bias + h] = bias_sum;
            grads[at.a_log + h] = rate_sum;
            grads[at.d_skip + h] = skips[2 * h] + skips[2 * h + 1];
        }
    }
    at.clear_padding(grads, CH, HD, DI);
    __syncthreads();
    for (int i = threadIdx.x; i < DI; i += blockDim.x) grads[at.norm + i] = dnorm[i] + dnorm[DI + i];

    // The scores' gradient, also transposed: dC = dG B, dB = dG^T C.
    for (int i = threadIdx.x; i < ROWS * ROWS; i += blockDim.x) {
        const int t = i / ROWS, k = i % ROWS;
        float sum = 0.0f;
        for (int head = 0; head < HD; ++head) sum += x[t * XS + head * WIDE + k];
        score[t * GS + k] = sum;
        chunks[k * GS + t] = sum;
    }
    __syncthreads();
    for (int task = threadIdx.x; task < 512; task += blockDim.x) {
        // A thread adds every second term of a 4 x 4 tile; its neighbour the others.
        const int part = task % 2, n = task / 2 % 16 * 4, tile = task / 32 % 8 * 4;
        const bool of_b = task / 256;
        const float *dg = (of_b ? score : chunks) + tile, *other = (of_b ? cs : bs) + n;
        const int stop = of_b ? ROWS : tile + 4;
        float sum[4][4] = {};
        for (int s = (of_b ? tile : 0) + part; s < stop; s += 2) {
            const float4 a = at4(dg + s * GS), b = at4(other + s * CB);
            const float ai[4] = {a.x, a.y, a.z, a.w}, bj[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += ai[i] * bj[j];
        }
        float two[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float send = part ? sum[i][j] : sum[i + 2][j];
                two[i][j] = (part ? sum[i + 2][j] : sum[i][j]) + __shfl_xor_sync(~0u, send, 1);
            }
        float* out = x + (of_b * ROWS + tile + 2 * part) * CB + n;
        *(float4*)out = make_float4(two[0][0], two[0][1], two[0][2], two[0][3]);
        *(float4*)(out + CB) = make_float4(two[1][0], two[1][1], two[1][2], two[1][3]);
    }
    __syncthreads();

    // Through the SiLU and convolution of C and B, 8 rows of 32 channels a warp; the gradients of taps and biases in parts.
    for (int task = warp; task < 16; task += 2 * HD) {
        const int ch = task / 4 * 32 + lane, segment = task % 4;
        const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
        float terms[5];
        conv_backward_segment(window + DI + ch, E, segment * AHEAD, taps, x + ch / WIDE * ROWS * CB + ch % WIDE, CB,
                              dwindow + DI + ch, terms);
#pragma unroll
        for (int j = 0; j < 5; ++j) g[(segment * 5 + j) * 2 * WIDE + ch] = terms[j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 10 * WIDE; i += blockDim.x) {
        const int j = i / (2 * WIDE), ch = i % (2 * WIDE);
        float sum = 0.0f;
        for (int segment = 0; segment < 4; ++segment) sum += g[segment * 10 * WIDE + i];
        grads[j < 4 ? j * CH + ch : at.conv_bias + ch] = sum;
    }
}

// First the outputs before the norm, kept where dz will be; then head by head; the gradients of SiLU's outputs wait where
// those of the convolution's inputs will be.
extern "C" __global__ void __launch_bounds__(256) mamba2_mixer_bwd_any(ARGS) {
    extern __shared__ double shared[];
    const int N = (CH - DI) / 2, P = DI / HD, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const AnyWindow s(shared, K, N, P);
    float* g = s.end;             // [K, P] dY of one head
    float* q = g + K * P;         // [K, K] Q L score of one head
    float* dscore = q + K * K;    // [K, K]
    float* skips = dscore + K * K;  // [P] gradient of D by column
    float *rstd = skips + P, *mean_r = rstd + K, *below = mean_r + K, *left = below + K, *draw = left + K, *drate = draw + K;
    const float *window = zcbxdt + (i64)blockIdx.x * K * E, *u = window + DI, *dout = dy + (i64)blockIdx.x * K * DI;
    float *dwindow = dzcbxdt + (i64)blockIdx.x * K * E, *du = dwindow + DI, *grads = partial + (i64)blockIdx.x * V;
    const Places at(CH, HD, DI);
    any_scores(s, u, E, conv_weight, conv_bias, CH, N, K);
    for (int i = threadIdx.x; i < K * K; i += blockDim.x) dscore[i] = 0.0f;
    for (int h = 0; h < HD; ++h) {
        any_head(s, u, E, conv_weight, conv_bias, dt_bias, a_log, h, CH, N, P, K);
        for (int i = threadIdx.x; i < K * P; i += blockDim.x)
            dwindow[(i64)(i / P) * E + h * P + i % P] = any_output(s, i / P, i % P, d_skip[h], P, K);
        __syncthreads();
    }
    for (int t = warp; t < K; t += warps) {
        float squares = 0.0f, product = 0.0f;
        for (int i = lane; i < DI; i += 32) {
            const float z = window[(i64)t * E + i], v = dwindow[(i64)t * E + i] * z * sigmoid(z);
            squares += v * v;
            product += dout[(i64)t * DI + i] * norm_weight[i] * v;
        }
        squares = warp_sum(squares); product = warp_sum(product);
        if (lane == 0) {
            rstd[t] = 1.0f / sqrtf(squares / DI + eps);
            mean_r[t] = rstd[t] * product / DI;
        }
    }
    at.clear_padding(grads, CH, HD, DI);
    __syncthreads();

    for (int h = 0; h < HD; ++h) {
        any_head(s, u, E, conv_weight, conv_bias, dt_bias, a_log, h, CH, N, P, K);
        for (int p = threadIdx.x; p < P; p += blockDim.x) {
            const int i = h * P + p;
            float dweight = 0.0f, skip = 0.0f;
            for (int t = 0; t < K; ++t) {
                float* dz = dwindow + (i64)t * E + i;
                const NormGrad grad(dout[(i64)t * DI + i], *dz, window[(i64)t * E + i], norm_weight[i], rstd[t], mean_r[t]);
                *dz = grad.dz;
                g[t * P + p] = grad.dy;
                dweight += grad.dweight;
                skip += grad.dy * s.x[t * P + p];
            }
            grads[at.norm + i] = dweight;
            skips[p] = skip;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < K * P; i += blockDim.x) {
            const int k = i / P, p = i % P;
            float sum = d_skip[h] * g[i];
            for (int t = k; t < K; ++t) sum += s.m[t * K + k] * g[t * P + p];
            du[(i64)k * E + 2 * N + h * P + p] = sum;
        }
        for (int i = threadIdx.x; i < K * K; i += blockDim.x) {
            const int t = i / K, k = i % K;
            if (t < k) continue;
            float sum = 0.0f;
            for (int p = 0; p < P; ++p) sum += g[t * P + p] * s.x[k * P + p];
            sum *= expf(s.log_decay(t, k));
            dscore[i] += sum * s.dt[k];
            q[i] = sum * s.score[i];
        }
        __syncthreads();
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            float column = 0.0f, row = 0.0f;
            for (int t = k + 1; t < K; ++t) column += q[t * K + k];
            for (int j = 0; j < k; ++j) row += q[k * K + j] * s.dt[j];
            below[k] = column;
            left[k] = row;
        }
        __syncthreads();
        const float rate = -expf(a_log[h]);
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            double pairs = 0.0;  // from row j to j + 1, the pairs k < j <= t lose row j and gain column j
            for (int j = 0; j < k; ++j) pairs += (double)(below[j] * s.dt[j]) - (double)left[j];
            const float da = (float)pairs * rate, raw = u[(i64)k * E + CH + h] + dt_bias[h];
            draw[k] = (below[k] + q[k * K + k] + da) * sigmoid(raw);
            drate[k] = da * s.dt[k];
            du[(i64)k * E + CH + h] = draw[k];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            float bias_sum = 0.0f, rate_sum = 0.0f, skip_sum = 0.0f;
            for (int k = 0; k < K; ++k) { bias_sum += draw[k]; rate_sum += drate[k]; }
            for (int p = 0; p < P; ++p) skip_sum += skips[p];
            grads[at.dt_bias + h] = bias_sum;
            grads[at.a_log + h] = rate_sum;
            grads[at.d_skip + h] = skip_sum;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < K * N; i += blockDim.x) {
        const int row = i / N, n = i % N;
        float of_c = 0.0f, of_b = 0.0f;
        for (int k = 0; k <= row; ++k) of_c += dscore[row * K + k] * s.b[k * N + n];
        for (int t = row; t < K; ++t) of_b += dscore[t * K + row] * s.c[t * N + n];
        du[(i64)row * E + n] = of_c;
        du[(i64)row * E + N + n] = of_b;
    }
    __syncthreads();
    for (int ch = threadIdx.x; ch < CH; ch += blockDim.x) {
        const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
        conv_backward<1, 0>(u + ch, E, K, taps, [&](const ConvRow<1>& now) { return load<1>(du + (i64)now.k * E + ch); },
                         du + ch, grads + ch, grads + at.conv_bias + ch, CH);
    }
}
