// `mamba2_mixer_bwd` and `_exact` (mma.cuh) are for the profiles' shape (mamba2_window.cuh), `_any` for all others, for cards
// whose blocks get less shared memory. At 1024 windows of the seed size the first moves 390 MB (about 95 us) and computes
// 1.7 G multiply-adds, of which the mask spares a third. One block of 16 warps a multiprocessor: x and dY of a window fill
// its shared memory.
#include "mamba2_any.cuh"
#include "mamba2_window.cuh"

#define ARGS                                                                                                       \
    const float *__restrict__ dy, const float *__restrict__ zcbxdt, const float *__restrict__ conv_weight,         \
        const float *__restrict__ conv_bias, const float *__restrict__ dt_bias, const float *__restrict__ a_log,   \
        const float *__restrict__ d_skip, const float *__restrict__ norm_weight, const float eps, const int tf32,  \
        float *dzcbxdt, float *__restrict__ partial, float *__restrict__ row_dot, const int R, const int K,        \
        const int DI, const int E, const int CH, const int HD, const int V
#define GIVEN dy, zcbxdt, conv_weight, conv_bias, dt_bias, a_log, d_skip, norm_weight, eps, dzcbxdt, partial, row_dot

// The two warps of head h wait for each other.
__device__ inline void pair_sync(int h) { asm volatile("bar.sync %0, 64;" ::"r"(h + 1) : "memory"); }

// A factor whose rows are rows of `p` (from g on) and whose columns are columns of it (from q on), and its transpose.
template <bool EXACT>
__device__ inline FactorA<EXACT> factor_a(const float* p, int stride) {
    return FactorA<EXACT>(p[0], p[8 * stride], p[4], p[8 * stride + 4]);
}
template <bool EXACT>
__device__ inline FactorA<EXACT> factor_a_transposed(const float* p, int stride) {
    return FactorA<EXACT>(p[0], p[8], p[4 * stride], p[4 * stride + 8]);
}

// Puts the copies of C's and B's columns on their way, a share of them by each of WARPS warps. u: C at row 0.
template <int WARPS, int E>
__device__ inline void load_states(float* cs, const float* u) {
    constexpr int SHARE = 2 * WIDE / WARPS, LANES = SHARE / 4;  // columns of a warp, lanes that copy a row of them
    const int lane = threadIdx.x % 32, ch = threadIdx.x / 32 * SHARE + lane % LANES * 4, row = lane / LANES;
    const float* from = u + row * E + ch;
    float* to = cs + (ch / WIDE * ROWS + row) * CB + ch % WIDE;
#pragma unroll
    for (int k = 0; k < ROWS; k += 32 / LANES) copy_async(to + k * CB, from + k * E);
    copies_end();
}

// Their convolution and SiLU in place, as factors, by the warps that copied them: a lane two columns of SHARE / 2 rows. A
// warp's lanes have read all rows before one is written.
template <bool EXACT, int WARPS, int CH>
__device__ inline void conv_states(float* cs, const float* weight, const float* bias) {
    constexpr int SHARE = 2 * WIDE / WARPS, LANES = SHARE / 2, EACH = SHARE / 2;
    const int lane = threadIdx.x % 32, ch = threadIdx.x / 32 * SHARE + lane % LANES * 2, k0 = lane / LANES * EACH;
    float* of = cs + (ch / WIDE * ROWS + k0) * CB + ch % WIDE;
    float2 row[EACH + 3], w[4];
#pragma unroll
    for (int i = 0; i < EACH + 3; ++i) row[i] = k0 || i >= 3 ? at2(of + (i - 3) * CB) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = at2(weight + j * CH + ch);
    const float2 shift = at2(bias + ch);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        float2 pre = shift;
#pragma unroll
        for (int j = 3; j >= 0; --j) {
            pre.x += w[j].x * row[i + j].x;
            pre.y += w[j].y * row[i + j].y;
        }
        *(float2*)(of + i * CB) = make_float2(silu_factor<EXACT>(pre.x), silu_factor<EXACT>(pre.y));
    }
}

// Puts the copies of this warp's 32 columns of x on their way, in rows of XS floats. x, u: the first of them at row 0.
template <int XS, int E>
__device__ inline void load_columns(float* x, const float* u) {
    const int lane = threadIdx.x % 32, n = lane % 8 * 4, row = lane / 8;
    const float* from = u + row * E + n;
    float* to = x + row * XS + n;
#pragma unroll
    for (int k = 0; k < ROWS; k += 4) copy_async(to + k * XS, from + k * E);
    copies_end();
}

// Backward of convolution and SiLU at one channel and AHEAD rows from `first` on: writes du there and u du to `products`,
// which lies like dvalue, and adds to nothing: terms [5] are these rows' parts of the gradients of the taps and the bias.
__device__ inline void conv_backward_segment(
    const float* u, int stride, int first, const Taps<1>& taps, const float* dvalue, int dstride, float* du,
    float* products, float (&terms)[5]) {
    float in[AHEAD + 6], d[AHEAD + 3];
#pragma unroll
    for (int i = 0; i < AHEAD + 6; ++i) {
        const int k = first - 3 + i;
        in[i] = k >= 0 && k < ROWS ? u[(i64)k * stride] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 5; ++j) terms[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < AHEAD + 3; ++i) {
        float pre = taps.bias.v[0];
#pragma unroll
        for (int j = 3; j >= 0; --j) pre += taps.w[j].v[0] * in[i + j];
        const float gate = sigmoid(pre), value = pre * gate;
        d[i] = first + i < ROWS ? silu_slope(value, gate) * dvalue[(first + i) * dstride] : 0.0f;
        if (i >= AHEAD) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) terms[j] += d[i] * in[i + j];
        terms[4] += d[i];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += taps.w[3 - j].v[0] * d[i + j];
        du[(i64)(first + i) * stride] = sum;
        products[(first + i) * dstride] = sum * in[i + 3];
    }
}

// Two warps a head, for 32 of its columns each. A lane keeps rows g + 8 i by columns 8 j + 2 q, 8 j + 2 q + 1 of Y, dY and
// dx (mma.cuh).
template <bool EXACT, int HD>
__device__ inline void mixer_backward(
    const float* __restrict__ dy, const float* __restrict__ zcbxdt, const float* __restrict__ conv_weight,
    const float* __restrict__ conv_bias, const float* __restrict__ dt_bias, const float* __restrict__ a_log,
    const float* __restrict__ d_skip, const float* __restrict__ norm_weight, float eps, float* dzcbxdt,
    float* __restrict__ partial, float* __restrict__ row_dot) {
    constexpr int DI = HD * WIDE, CH = 2 * WIDE + DI, E = DI + CH + HD, XS = DI + 8;
    extern __shared__ float4 aligned[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp / 2, half = warp % 2, g = lane / 4, q = lane % 4;
    const int first = warp * 32;  // of this warp's columns
    float* x = (float*)aligned;         // [32, XS]; later a head's part of the scores' gradient, then dC and dB
    float* d = x + ROWS * XS;           // [32, XS] dY, later dx, then u du of x
    float* cs = d + ROWS * XS;          // [32, CB], later u du of C
    float* bs = cs + ROWS * CB;         // [32, CB], later u du of B
    float* score = bs + ROWS * CB;      // [32, GS], later their gradient
    float* masks = score + ROWS * GS;   // [HD, 32, GS] M, later parts of Q, then the scores' gradient transposed [32, GS]
    float *m = masks + h * ROWS * GS, *vectors = masks + HD * ROWS * GS;
    float* dt = vectors + h * ROWS;                               // [HD, 32]
    float2* prefix = (float2*)(vectors + HD * ROWS) + h * ROWS;   // [HD, 32]
    float* sums = vectors + 3 * HD * ROWS;                        // [2, 2 HD, 32] of g^2, of dout weight g, by warp;
                                                                  // later [2 HD, 32] of u du without C and B
    float* column = vectors + 7 * HD * ROWS + h * 2 * ROWS;       // [HD, 2, 32] below the diagonal, by warp
    float* row = vectors + 9 * HD * ROWS + h * 2 * ROWS;          // [HD, 2, 32] left of the diagonal, by warp
    float* diagonal = vectors + 11 * HD * ROWS + h * ROWS;        // [HD, 32]
    float* skips = vectors + 12 * HD * ROWS;                      // [2 HD] gradient of D

    const Places at(CH, HD, DI);
    const i64 first_row = (i64)blockIdx.x * ROWS;
    const float *window = zcbxdt + first_row * E, *z = window + first + 2 * q;
    float *dwindow = dzcbxdt + first_row * E, *grads = partial + (i64)blockIdx.x * at.end;
    load_states<2 * HD, E>(cs, window + DI);
    load_columns<XS, E>(x + first, window + DI + 2 * WIDE + first);
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // dout waits where dY will be
        const int t = 4 * i + lane / 8, n = first + lane % 8 * 4;
        copy_async(d + t * XS + n, dy + (first_row + t) * DI + n);
    }
    copies_end();
    const float raw = window[(i64)lane * E + DI + CH + h] + dt_bias[h], rate = -expf(a_log[h]), skip = factor<EXACT>(d_skip[h]);
    prefetch_rows(window, E, DI / 32, ROWS);  // the gate
    copies_wait<2>();
    __syncwarp();
    conv_states<EXACT, 2 * HD, CH>(cs, conv_weight, conv_bias);
    if (!half) decay_prefix(raw, a_log[h], dt, prefix);
    __syncthreads();
    scores<EXACT>(cs, bs, score);
    copies_wait<1>();
    __syncwarp();
    conv_group<EXACT>(x + first, XS, conv_weight + 2 * WIDE + first, conv_bias + 2 * WIDE + first, CH);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 6; ++i) {  // M with D on its diagonal, in the blocks that scores() computed
        const int n = 2 * i + half, block = n < 4 ? n / 2 : n / 4 + 1, s = n < 4 ? n % 2 : n % 4, k = 8 * s + lane % 8;
#pragma unroll
        for (int upper = 0; upper < 8; upper += 4) {
            const int t = 8 * block + upper + lane / 8;
            m[t * GS + k] =
                masked(block, s, t, k, score[t * GS + k], prefix[t], prefix[k], factor<EXACT>(dt[k]), skip);
        }
    }
    pair_sync(h);

    // Y = M x.
    float y[2][4][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        const float* xs = x + (8 * s + q) * XS + first + g;
        FactorA<EXACT> a[2];
#pragma unroll
        for (int i = s / 2; i < 2; ++i) a[i] = factor_a<EXACT>(m + (16 * i + g) * GS + 8 * s + q, GS);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const FactorB<EXACT> b(xs[8 * j], xs[4 * XS + 8 * j]);
#pragma unroll
            for (int i = s / 2; i < 2; ++i) multiply_add(y[i][j], a[i], b);
        }
    }

    // The gated norm, first its two sums over whole rows.
    copies_wait<0>();
    __syncwarp();
    float* slots = d + first + 2 * q;
    float2 gate[4][4], weight[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) weight[j] = at2(norm_weight + first + 2 * q + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) gate[i][j] = at2(z + (i64)(g + 8 * i) * E + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = g + 8 * i;
        float squares = 0.0f, product = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 dj = at2(slots + t * XS + 8 * j), zj = gate[i][j];
            const float *yj = y[i / 2][j] + i % 2 * 2, a = yj[0] * zj.x * sigmoid(zj.x), b = yj[1] * zj.y * sigmoid(zj.y);
            squares += a * a + b * b;
            product += dj.x * weight[j].x * a + dj.y * weight[j].y * b;
        }
        for (int o = 1; o < 4; o *= 2) {
            squares += __shfl_xor_sync(~0u, squares, o);
            product += __shfl_xor_sync(~0u, product, o);
        }
        if (q == 0) {
            sums[warp * ROWS + t] = squares;
            sums[(2 * HD + warp) * ROWS + t] = product;
        }
    }
    __syncthreads();
    float rstd = 0.0f, mean_r = 0.0f;  // of row `lane`
#pragma unroll 8  // code that does not fit the instruction cache costs more
    for (int w = 0; w < 2 * HD; ++w) {
        rstd += sums[w * ROWS + lane];
        mean_r += sums[(2 * HD + w) * ROWS + lane];
    }
    rstd = 1.0f / sqrtf(rstd / DI + eps);
    mean_r *= rstd / DI;
    float2 dweight[4] = {};
    float* dots = (half ? d : x) + DI + h;  // row stride XS: the rows' sums of z dz by warp, in the padding
    float kept = 0.0f;                      // that of row g + 8 q
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int t = g + 8 * i;
        float dot = 0.0f;
        const float r = __shfl_sync(~0u, rstd, t), mean = __shfl_sync(~0u, mean_r, t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2* slot = (float2*)(slots + t * XS + 8 * j);
            const float2 dj = *slot, zj = gate[i][j];
            const float* yj = y[i / 2][j] + i % 2 * 2;
            const NormGrad a(dj.x, yj[0], zj.x, weight[j].x, r, mean), b(dj.y, yj[1], zj.y, weight[j].y, r, mean);
            *(float2*)(dwindow + (i64)t * E + first + 2 * q + 8 * j) = make_float2(a.dz, b.dz);
            *slot = make_float2(factor<EXACT>(a.dy), factor<EXACT>(b.dy));
            dweight[j].x += a.dweight;
            dweight[j].y += b.dweight;
            dot += zj.x * a.dz + zj.y * b.dz;
        }
        for (int o = 1; o < 4; o *= 2) dot += __shfl_xor_sync(~0u, dot, o);
        if (q == i) kept = dot;
    }
    dots[(g + 8 * q) * XS] = kept;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        for (int o = 4; o < 32; o *= 2) {
            dweight[j].x += __shfl_xor_sync(~0u, dweight[j].x, o);
            dweight[j].y += __shfl_xor_sync(~0u, dweight[j].y, o);
        }
        if (g == 0) *(float2*)(grads + at.norm + first + 2 * q + 8 * j) = dweight[j];
    }
    __syncwarp();

    // dx = M^T dY; rows are now rows of x.
    float dx[2][4][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        const float* ds = d + (8 * s + q) * XS + first + g;
        FactorA<EXACT> a[2];
#pragma unroll
        for (int i = 0; i <= s / 2; ++i) a[i] = factor_a_transposed<EXACT>(m + (8 * s + q) * GS + 16 * i + g, GS);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const FactorB<EXACT> b(ds[8 * j], ds[4 * XS + 8 * j]);
#pragma unroll
            for (int i = 0; i <= s / 2; ++i) multiply_add(dx[i][j], a[i], b);
        }
    }

    // Q = dY x^T in blocks of 16 rows by 8 columns: (0, 0), (0, 8), then (16, 0) to (16, 24). Of each this warp's columns.
    float part[6][4] = {};
#pragma unroll
    for (int n = 0; n < 32; n += 8) {  // columns n + 2 q, n + 2 q + 1 in the places of q, q + 4
        FactorA<EXACT> a[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* ds = slots + (16 * i + g) * XS + n;
            const float2 r0 = at2(ds), r1 = at2(ds + 8 * XS);
            a[i] = FactorA<EXACT>(r0.x, r1.x, r0.y, r1.y);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 xj = at2(x + (8 * j + g) * XS + first + 2 * q + n);
            const FactorB<EXACT> b(xj.x, xj.y);
            if (j < 2) multiply_add(part[j], a[0], b);
            multiply_add(part[2 + j], a[1], b);
        }
    }
    // The first warp goes on with the first three blocks, the other one with the others.
    pair_sync(h);  // M has been read
    float4* handed = (float4*)m + lane;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        float v[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) v[r] = half ? part[i][r] : part[3 + i][r];
        handed[(3 * half + i) * 32] = make_float4(v[0], v[1], v[2], v[3]);
    }
    pair_sync(h);
    // Q L dt is this head's gradient of the scores; Q L score that of dt, beside its part through the decay.
    float below[3][2] = {}, left[4] = {}, dskip = 0.0f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float4 other = handed[(3 * (1 - half) + i) * 32];
        const float others[4] = {other.x, other.y, other.z, other.w};
        const bool low = !half && i < 2;  // rows below 16
        const int t0 = (low ? 0 : 16) + g, k0 = 8 * (half ? i + 1 : i % 2) + 2 * q;
        const float4 from = at4((float*)(prefix + k0));
        const float2 steps = at2(dt + k0);
        float scaled[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int t = t0 + 8 * e;
            const float2 to = prefix[t], two = at2(score + t * GS + k0);
            float before = 0.0f;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int k = k0 + c, r = 2 * e + c;
                const float whole = (half ? part[3 + i][r] : part[i][r]) + others[r], step = c ? steps.y : steps.x;
                const float decay = decay_between(to, c ? make_float2(from.z, from.w) : make_float2(from.x, from.y));
                const float ql = t >= k ? whole * decay : 0.0f, w = ql * (c ? two.y : two.x);
                scaled[r] = ql * step;
                if (t == k) diagonal[k] = w;
                dskip += t == k ? whole : 0.0f;
                below[i][c] += t > k ? w : 0.0f;
                before += t > k ? w * step : 0.0f;
            }
            left[e] += low ? before : 0.0f;  // not left[low ? ...]: registers have no index
            left[2 + e] += low ? 0.0f : before;
        }
        float* to = x + t0 * XS + h * WIDE + k0;  // x and dY of this head have been read
        *(float2*)to = make_float2(scaled[0], scaled[1]);
        *(float2*)(to + 8 * XS) = make_float2(scaled[2], scaled[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        for (int o = 1; o < 4; o *= 2) left[i] += __shfl_xor_sync(~0u, left[i], o);
        if (q == 0) row[half * ROWS + g + 8 * i] = left[i];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            for (int o = 4; o < 32; o *= 2) below[i][r] += __shfl_xor_sync(~0u, below[i][r], o);
    if (g == 0) {
        float* to = column + half * ROWS + 2 * q;
        *(float2*)to = half ? make_float2(0.0f, 0.0f) : make_float2(below[0][0] + below[2][0], below[0][1] + below[2][1]);
        *(float2*)(to + 8) = half ? make_float2(below[0][0], below[0][1]) : make_float2(below[1][0], below[1][1]);
        *(float2*)(to + 16) = half ? make_float2(below[1][0], below[1][1]) : make_float2(0.0f, 0.0f);
        *(float2*)(to + 24) = half ? make_float2(below[2][0], below[2][1]) : make_float2(0.0f, 0.0f);
    }
    dskip = warp_sum(dskip);
    if (lane == 0) skips[warp] = dskip;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float* v = dx[i / 2][j] + i % 2 * 2;
            *(float2*)(slots + (g + 8 * i) * XS + 8 * j) = make_float2(v[0], v[1]);
        }
    pair_sync(h);
    {  // through x's SiLU and convolution, a lane a channel
        const int ch = 2 * WIDE + first + lane;
        const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
        float* own = d + first + lane;
        conv_backward<1, ROWS>(window + DI + ch, E, ROWS, taps,
                               [&](const ConvRow<1>& now) { return load<1>(own + now.k * XS); },
                               dwindow + DI + ch, grads + ch, grads + at.conv_bias + ch, CH,
                               [&](int k, const Piece<1>& u, const Piece<1>& du) { own[k * XS] = u.v[0] * du.v[0]; });
    }
    __syncwarp();
    float dot = dots[lane * XS];  // of row `lane` over this warp's columns; where it starts spreads the rows over the banks
#pragma unroll 2  // as above
    for (int n = 0; n < 8; ++n) {
        const float4 v = at4(d + lane * XS + first + (n + lane / 4) % 8 * 4);
        dot += (v.x + v.y) + (v.z + v.w);
    }
    if (!half) {
        // A lane a row. Moving from row j to j + 1, the pairs k < j <= t lose row j and gain column j.
        const float sum = column[lane] + column[ROWS + lane], step = dt[lane];
        double pairs = (double)(sum * step) - (double)(row[lane] + row[ROWS + lane]);
        for (int o = 1; o < 32; o *= 2) {
            const double before = __shfl_up_sync(~0u, pairs, o);
            if (lane >= o) pairs += before;
        }
        pairs = __shfl_up_sync(~0u, pairs, 1);
        const float da = lane ? (float)pairs * rate : 0.0f;
        const float draw = (sum + diagonal[lane] + da) * sigmoid(raw);
        dwindow[(i64)lane * E + DI + CH + h] = draw;
        dot += draw * window[(i64)lane * E + DI + CH + h];
        const float bias_sum = warp_sum(draw), rate_sum = warp_sum(da * step);
        if (lane == 0) {
            grads[at.dt_bias + h] = bias_sum;
            grads[at.a_log + h] = rate_sum;
            grads[at.d_skip + h] = skips[2 * h] + skips[2 * h + 1];
        }
    }
    at.clear_padding(grads, CH, HD, DI);
    __syncthreads();
    sums[warp * ROWS + lane] = dot;

    // The scores' gradient, also transposed: dC = dG B, dB = dG^T C.
    for (int i = threadIdx.x; i < ROWS * ROWS; i += blockDim.x) {
        const int t = i / ROWS, k = i % ROWS;
        float sum = 0.0f;
        if (t >= 16 || k < 16)
#pragma unroll 4  // as above
            for (int head = 0; head < HD; ++head) sum += x[t * XS + head * WIDE + k];
        sum = factor<EXACT>(sum);
        score[t * GS + k] = sum;
        masks[k * GS + t] = sum;
    }
    __syncthreads();
    for (int task = warp; task < 16; task += 2 * HD) {
        const bool of_b = task / 8;
        const int n = task % 8 * 8;
        const float *dg = (of_b ? masks : score) + g * GS + q, *other = (of_b ? cs : bs) + q * CB + n + g;
        float sum[2][4] = {};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const FactorB<EXACT> b(other[8 * s * CB], other[(8 * s + 4) * CB]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (of_b ? s >= 2 * i : s < 2 * i + 2) multiply_add(sum[i], factor_a<EXACT>(dg + 16 * i * GS + 8 * s, GS), b);
        }
        float* out = x + (of_b * ROWS + g) * CB + n + 2 * q;
#pragma unroll
        for (int i = 0; i < 4; ++i) *(float2*)(out + 8 * i * CB) = at2(sum[i / 2] + i % 2 * 2);
    }
    __syncthreads();

    // Through the SiLU and convolution of C and B, 8 rows of 32 channels a warp; the gradients of taps and biases in parts.
    for (int task = warp; task < 16; task += 2 * HD) {
        const int ch = task / 4 * 32 + lane, segment = task % 4, place = ch / WIDE * ROWS * CB + ch % WIDE;
        const Taps<1> taps(conv_weight + ch, conv_bias + ch, CH);
        float terms[5];
        conv_backward_segment(window + DI + ch, E, segment * AHEAD, taps, x + place, CB, dwindow + DI + ch, cs + place,
                              terms);
#pragma unroll
        for (int j = 0; j < 5; ++j) d[(segment * 5 + j) * 2 * WIDE + ch] = terms[j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 10 * WIDE; i += blockDim.x) {
        const int j = i / (2 * WIDE), ch = i % (2 * WIDE);
        float sum = 0.0f;
        for (int segment = 0; segment < 4; ++segment) sum += d[segment * 10 * WIDE + i];
        grads[j < 4 ? j * CH + ch : at.conv_bias + ch] = sum;
    }
    for (int t = threadIdx.x / 16; t < ROWS; t += blockDim.x / 16) {  // 16 lanes a row
        const int i = lane % 16;
        const float4 c = at4(cs + t * CB + 4 * i), b = at4(bs + t * CB + 4 * i);
        float sum = ((c.x + c.y) + (c.z + c.w)) + ((b.x + b.y) + (b.z + b.w));
        if (i < 2 * HD) sum += sums[i * ROWS + t];
        for (int o = 1; o < 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
        if (i == 0) row_dot[first_row + t] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) mamba2_mixer_bwd(ARGS) {
    if (HD == 8) mixer_backward<false, 8>(GIVEN);
    else mixer_backward<false, 4>(GIVEN);
}
extern "C" __global__ void __launch_bounds__(512, 1) mamba2_mixer_bwd_exact(ARGS) {
    if (HD == 8) mixer_backward<true, 8>(GIVEN);
    else mixer_backward<true, 4>(GIVEN);
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
    __syncthreads();
    for (int t = warp; t < K; t += warps) {
        float sum = 0.0f;
        for (int i = lane; i < E; i += 32) sum += dwindow[(i64)t * E + i] * window[(i64)t * E + i];
        sum = warp_sum(sum);
        if (lane == 0) row_dot[(i64)blockIdx.x * K + t] = sum;
    }
}
