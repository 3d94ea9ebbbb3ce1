// Pieces of the Mamba-2 mixers; kernels/mixer_parts.py is the definition. Sizes: N state, DI inner, HD heads, P head size.
#pragma once
#include "pieces.cuh"
#include "reduce.cuh"

constexpr int AHEAD = 8;  // rows of a channel that are loaded before the first is used

// 2^u and 1 / u by one instruction each: to 2 units in the last place, with numbers below 2^-126 as zeros.
__device__ inline float exp2_fast(float u) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(u));
    return r;
}
__device__ inline float reciprocal_fast(float u) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(u));
    return r;
}
// Relative error below 1e-6 for |u| < 10, where the result matters; 0 and 1 at the ends, NaN of NaN alone.
__device__ inline float sigmoid(float u) { return reciprocal_fast(1.0f + exp2_fast(u * -1.44269504f)); }
__device__ inline float softplus(float u) { return fmaxf(u, 0.0f) + log1pf(expf(-fabsf(u))); }
// d SiLU(u) / du from SiLU(u) and sigmoid(u).
__device__ inline float silu_slope(float value, float gate) { return (1.0f - value) * gate + value; }

// Taps and bias of the causal convolution at V channels.
template <int V>
struct Taps {
    Piece<V> w[4], bias;
    __device__ Taps(const float* weight, const float* b, int CH) : bias(load<V>(b)) {
        for (int j = 0; j < 4; ++j) w[j] = load<V>(weight + j * CH);
    }
};

// One row of V channels in the convolution.
template <int V>
struct ConvRow {
    int k;
    Piece<V> value, slope, u[4];  // SiLU and its slope; inputs at k - 3 .. k
};

// Calls use(ConvRow) for k = 0 .. K - 1. `u`: V channels at row 0. ROWS: K where it is known, a multiple of AHEAD, else 0.
// AHEAD rows are loaded before the first of them is used or, where K is known, before the first of the AHEAD rows before
// them. Returns the last row.
template <int V, int ROWS, class Use>
__device__ inline ConvRow<V> for_conv_rows(const float* u, int stride, int rows, const Taps<V>& taps, Use use) {
    const int K = ROWS ? ROWS : rows;
    ConvRow<V> row = {};
    Piece<V> next[AHEAD];
    const auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (k0 + i < K) next[i] = load<V>(u + (i64)(k0 + i) * stride);
    };
    if (ROWS) fetch(0);
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += AHEAD) {
        if (!ROWS) fetch(k0);
        Piece<V> now[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) now[i] = next[i];
        if (ROWS) fetch(k0 + AHEAD);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (k0 + i >= K) break;
            row.k = k0 + i;
            row.u[0] = row.u[1]; row.u[1] = row.u[2]; row.u[2] = row.u[3]; row.u[3] = now[i];
#pragma unroll
            for (int v = 0; v < V; ++v) {
                float pre = taps.bias.v[v];
#pragma unroll
                for (int j = 3; j >= 0; --j) pre += taps.w[j].v[v] * row.u[j].v[v];
                const float gate = sigmoid(pre);
                row.value.v[v] = pre * gate;
                row.slope.v[v] = silu_slope(row.value.v[v], gate);
            }
            use(row);
        }
    }
    return row;
}

struct Unseen {
    template <class P>
    __device__ void operator()(int, const P&, const P&) const {}
};

// Backward of the convolution and SiLU at V channels: dvalue(ConvRow) -> gradient of SiLU's output; writes du, and the
// window's gradients of taps and bias. A row of du is written, and shown to seen(k, u, du), three rows after its dvalue was
// asked for, so both may lie in the same place. K >= 4.
template <int V, int ROWS, class Dvalue, class Seen = Unseen>
__device__ inline void conv_backward(
    const float* u, int stride, int rows, const Taps<V>& taps, Dvalue dvalue, float* du, float* dweight, float* dbias,
    int CH, Seen seen = {}) {
    const int K = ROWS ? ROWS : rows;
    Piece<V> d[4] = {}, dw[4] = {}, db = {}, out;  // d[j]: gradient before SiLU at row k - 3 + j
    const ConvRow<V> last = for_conv_rows<V, ROWS>(u, stride, K, taps, [&](const ConvRow<V>& row) {
        const Piece<V> dv = dvalue(row);
        d[0] = d[1]; d[1] = d[2]; d[2] = d[3];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            d[3].v[v] = dv.v[v] * row.slope.v[v];
            db.v[v] += d[3].v[v];
            out.v[v] = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                dw[j].v[v] += d[3].v[v] * row.u[j].v[v];
                out.v[v] += taps.w[3 - j].v[v] * d[j].v[v];
            }
        }
        if (row.k < 3) return;
        store<V>(du + (i64)(row.k - 3) * stride, out);
        seen(row.k - 3, row.u[0], out);
    });
#pragma unroll
    for (int k = 1; k < 4; ++k) {  // the last three rows see fewer rows after them
#pragma unroll
        for (int v = 0; v < V; ++v) {
            out.v[v] = 0.0f;
#pragma unroll
            for (int j = k; j < 4; ++j) out.v[v] += taps.w[3 - j + k].v[v] * d[j].v[v];
        }
        store<V>(du + (i64)(K - 4 + k) * stride, out);
        seen(K - 4 + k, last.u[k], out);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) store<V>(dweight + j * CH, dw[j]);
    store<V>(dbias, db);
}

// Where a mixer's vectors lie in one row of `partial`: kernels/vectors.py, mixer_vectors.
struct Places {
    int conv_bias, dt_bias, a_log, d_skip, norm, end;
    __device__ static int padded(int n) { return (n + 63) / 64 * 64; }
    __device__ Places(int CH, int HD, int DI) {
        conv_bias = padded(4 * CH);
        dt_bias = conv_bias + padded(CH);
        a_log = dt_bias + padded(HD);
        d_skip = a_log + padded(HD);
        norm = d_skip + padded(HD);
        end = norm + padded(DI);
    }
    // Zeros between the vectors.
    __device__ void clear_padding(float* partial, int CH, int HD, int DI) const {
        clear(partial, 4 * CH, conv_bias);
        clear(partial, conv_bias + CH, dt_bias);
        clear(partial, dt_bias + HD, a_log);
        clear(partial, a_log + HD, d_skip);
        clear(partial, d_skip + HD, norm);
        clear(partial, norm + DI, end);
    }
    __device__ static void clear(float* partial, int from, int to) {
        if (from + (int)threadIdx.x < to) partial[from + threadIdx.x] = 0.0f;  // fewer than 64
        if (blockDim.x < 64 && from + (int)threadIdx.x + 32 < to) partial[from + threadIdx.x + 32] = 0.0f;
    }
};

// The gated norm's gradients at one value. r = rstd of the row, mean_r = rstd * mean(dout weight g), g = y SiLU(z).
struct NormGrad {
    float dy, dz, dweight;
    __device__ NormGrad(float dout, float y, float z, float weight, float r, float mean_r) {
        const float gate = sigmoid(z), silu = gate * z, v = y * silu * r;
        const float dg = r * (dout * weight - v * mean_r);
        dweight = dout * v;
        dz = silu_slope(silu, gate) * y * dg;
        dy = dg * silu;
    }
};
