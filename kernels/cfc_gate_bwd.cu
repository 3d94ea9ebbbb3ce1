// A thread a piece of the hidden state: 4 pieces read and 4 written.
#include "pieces.cuh"

#define ARGS                                                                                                         \
    const float* __restrict__ dhead, const float* __restrict__ gates, const float* __restrict__ ts,                  \
        float* __restrict__ dmaps, const int R, const int H4, const int G3, const int M4

template <int N>
__device__ inline void gate_bwd(ARGS) {
    const int H = H4 - 4;
    FOR_EACH(i, (i64)R * (H / N)) {
        const i64 r = i / (H / N);
        const int c = (int)(i - r * (H / N)) * N;
        const float* gate = gates + r * G3 + c;
        const Piece<N> f1 = load<N>(gate), f2 = load<N>(gate + H), s = load<N>(gate + 2 * H), dh = load<N>(dhead + r * H4 + c);
        const float elapsed = ts[r];
        Piece<N> d1, d2, da, db;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float through2 = dh[k] * s[k], through1 = dh[k] - through2;
            d1[k] = (1.0f - f1[k] * f1[k]) * through1;
            d2[k] = (1.0f - f2[k] * f2[k]) * through2;
            db[k] = (f2[k] - f1[k]) * s[k] * through1;
            da[k] = db[k] * elapsed;
        }
        float* d = dmaps + r * M4 + c;
        store(d, d1); store(d + H, d2); store(d + 2 * H, da); store(d + 3 * H, db);
    }
}

// dhead [R, H + 4]; gates [R, 3 H]: f1, f2, s; ts [R]; dmaps [R, 4 H]: f1, f2, a, b
extern "C" __global__ void cfc_gate_bwd(ARGS) {
    if (H4 % 4 == 0) gate_bwd<4>(dhead, gates, ts, dmaps, R, H4, G3, M4);
    else gate_bwd<1>(dhead, gates, ts, dmaps, R, H4, G3, M4);
}
