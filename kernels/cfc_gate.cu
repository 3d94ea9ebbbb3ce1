// A thread a piece of a row of `head`: 4 pieces read and 5 written, neighbours in memory from thread to thread.
#include "pieces.cuh"

#define ARGS                                                                                                         \
    const float* __restrict__ maps, const float* __restrict__ ts, float* __restrict__ gates, float* __restrict__ h,  \
        float* __restrict__ head, const int R, const int M4, const int G3, const int H, const int H4

template <int N>
__device__ inline void gate(ARGS) {
    FOR_EACH(i, (i64)R * (H4 / N)) {
        const i64 r = i / (H4 / N);
        const int c = (int)(i - r * (H4 / N)) * N;
        if (c >= H) {
            store(head + i * N, one_and_zeros<N>(c - H));
            continue;
        }
        const float* map = maps + r * M4 + c;
        const Piece<N> x1 = load<N>(map), x2 = load<N>(map + H), a = load<N>(map + 2 * H), b = load<N>(map + 3 * H);
        const float elapsed = ts[r];
        Piece<N> f1, f2, s, next;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            f1[k] = tanhf(x1[k]);
            f2[k] = tanhf(x2[k]);
            s[k] = tanhf((a[k] * elapsed + b[k]) * 0.5f) * 0.5f + 0.5f;
            next[k] = (f2[k] - f1[k]) * s[k] + f1[k];
        }
        float* to = gates + r * G3 + c;
        store(to, f1); store(to + H, f2); store(to + 2 * H, s);
        store(h + r * H + c, next); store(head + i * N, next);
    }
}

// maps [R, 4 H]: f1, f2, a, b; ts [R]; gates [R, 3 H]: f1, f2, s; h [R, H]; head [R, H + 4]: h, 1, 0, 0, 0
extern "C" __global__ void cfc_gate(ARGS) {
    if (H % 4 == 0) gate<4>(maps, ts, gates, h, head, R, M4, G3, H, H4);
    else gate<1>(maps, ts, gates, h, head, R, M4, G3, H, H4);
}
