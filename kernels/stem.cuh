// The stem's weights We~ = [We | b | 0], [D, X]: the embedding, its bias as column F, and zeros. kernels/stem_weights.py.
#pragma once
#include "float4.cuh"

// p[at .. at + 3] of a vector of n, zeros behind its end. `whole`: both n and `at` are multiples of 4.
__device__ inline float4 four_of(const float* p, int at, int n, bool whole) {
    if (whole) return at < n ? *(const float4*)(p + at) : zeros();
    return make_float4(at < n ? p[at] : 0.0f, at + 1 < n ? p[at + 1] : 0.0f, at + 2 < n ? p[at + 2] : 0.0f,
                       at + 3 < n ? p[at + 3] : 0.0f);
}

struct Stem {
    const float *embed, *bias;  // [D, F], [D]
    int D, F;
    __device__ float at(int d, int c) const { return c < F ? embed[(i64)d * F + c] : c == F ? bias[d] : 0.0f; }
    // Columns c .. c + 3 of row d, c a multiple of 4; zeros for d >= D.
    __device__ float4 four(int d, int c) const {
        if (d >= D) return zeros();
        if (F % 4) return make_float4(at(d, c), at(d, c + 1), at(d, c + 2), at(d, c + 3));
        return c < F ? *(const float4*)(embed + (i64)d * F + c) : make_float4(at(d, c), 0.0f, 0.0f, 0.0f);
    }
};

// sum += a b
__device__ inline void add_times(float4& sum, float a, float4 b) {
    sum.x += a * b.x; sum.y += a * b.y; sum.z += a * b.z; sum.w += a * b.w;
}
