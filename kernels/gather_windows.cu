// A window is K contiguous rows, and x is contiguous too: threads run over all R * K * F values and both sides coalesce.
#include "common.cuh"

extern "C" __global__ void gather_windows(
    const int* __restrict__ rows,         // [R]
    const float* __restrict__ features,   // [N, F]
    const float* __restrict__ mean,       // [F]
    const float* __restrict__ std,        // [F]
    const float* __restrict__ ts_gap,     // [N]
    float* __restrict__ x,                // [R, K, F]
    float* __restrict__ ts,               // [R]
    const int R, const int N, const int F, const int K) {
    const i64 window = (i64)K * F;
    FOR_EACH(i, R * window) {
        const int r = (int)(i / window);
        const int f = (int)(i % F);
        // A window is K whole rows, so its values lie in one piece that ends with row rows[r].
        const i64 at = ((i64)rows[r] - K + 1) * F + i % window;
        x[i] = fminf(fmaxf((features[at] - mean[f]) / std[f], -CLIP), CLIP);
    }
    FOR_EACH(r, R) ts[r] = ts_gap[rows[r]];
}
