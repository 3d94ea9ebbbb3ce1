// A thread a column of `head`: 4 values read and 5 written, neighbours in memory from thread to thread.
#include "common.cuh"

extern "C" __global__ void cfc_gate(
    const float* __restrict__ maps,  // [R, 4 H]: f1, f2, a, b
    const float* __restrict__ ts,    // [R]
    float* __restrict__ gates,       // [R, 3 H]: f1, f2, s
    float* __restrict__ h,           // [R, H]
    float* __restrict__ head,        // [R, H + 4]: h, 1, 0, 0, 0
    const int R, const int M4, const int G3, const int H, const int H4) {
    FOR_EACH(i, (i64)R * H4) {
        const i64 r = i / H4;
        const int c = (int)(i - r * H4);
        if (c >= H) {
            head[i] = c == H ? 1.0f : 0.0f;
            continue;
        }
        const float* map = maps + r * M4 + c;
        float* gate = gates + r * G3 + c;
        const float f1 = tanhf(map[0]), f2 = tanhf(map[H]);
        const float s = tanhf((map[2 * H] * ts[r] + map[3 * H]) * 0.5f) * 0.5f + 0.5f;
        const float next = (f2 - f1) * s + f1;
        gate[0] = f1; gate[H] = f2; gate[2 * H] = s;
        h[r * H + c] = head[i] = next;
    }
}
