// A thread a unit of the hidden state: 4 values read and 4 written.
#include "common.cuh"

extern "C" __global__ void cfc_gate_bwd(
    const float* __restrict__ dhead,  // [R, H + 4]
    const float* __restrict__ gates,  // [R, 3 H]: f1, f2, s
    const float* __restrict__ ts,     // [R]
    float* __restrict__ dmaps,        // [R, 4 H]: f1, f2, a, b
    const int R, const int H4, const int G3, const int M4) {
    const int H = G3 / 3;
    FOR_EACH(i, (i64)R * H) {
        const i64 r = i / H;
        const int c = (int)(i - r * H);
        const float* gate = gates + r * G3 + c;
        float* d = dmaps + r * M4 + c;
        const float f1 = gate[0], f2 = gate[H], s = gate[2 * H], dh = dhead[r * H4 + c];
        const float through2 = dh * s, through1 = dh - through2, db = (f2 - f1) * s * through1;
        d[0] = (1.0f - f1 * f1) * through1;
        d[H] = (1.0f - f2 * f2) * through2;
        d[2 * H] = db * ts[r];
        d[3 * H] = db;
    }
}
