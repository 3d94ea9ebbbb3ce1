// One block a window. A window is K whole rows, so its values lie in one piece of the market that ends with row rows[r].
#include "common.cuh"

#define AHEAD 4  // loads of a thread in flight

__device__ inline float normalise(float x, float mean, float std) { return fminf(fmaxf((x - mean) / std, -CLIP), CLIP); }

__device__ inline float4 normalise(float4 x, float4 mean, float4 std) {
    return make_float4(normalise(x.x, mean.x, std.x), normalise(x.y, mean.y, std.y), normalise(x.z, mean.z, std.z),
                       normalise(x.w, mean.w, std.w));
}

__device__ inline float one(float) { return 1.0f; }
__device__ inline float4 one(float4) { return make_float4(1.0f, 0.0f, 0.0f, 0.0f); }
__device__ inline float zero(float) { return 0.0f; }
__device__ inline float4 zero(float4) { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }

// K rows of F values to rows of `width`, which lie `stride` apart.
template <class T>
__device__ inline void window(const T* from, const T* mean, const T* std, T* to, int K, int F, int width, int stride) {
    for (int first = threadIdx.x; first < K * width; first += AHEAD * blockDim.x) {
        T x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = first + j * blockDim.x, k = i / width, c = i % width;
            if (k < K && c < F) x[j] = from[k * F + c];
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = first + j * blockDim.x, k = i / width, c = i % width;
            if (k < K) to[k * stride + c] = c < F ? normalise(x[j], mean[c], std[c]) : c == F ? one(T()) : zero(T());
        }
    }
}

extern "C" __global__ void gather_windows(
    const int* __restrict__ rows,         // [R]
    const float* __restrict__ features,   // [N, F]
    const float* __restrict__ mean,       // [F]
    const float* __restrict__ std,        // [F]
    const float* __restrict__ ts_gap,     // [N]
    const int first,
    float* __restrict__ x,                // [R, K, Y]
    float* __restrict__ ts,               // [R]
    const int R, const int N, const int F, const int K, const int Y) {
    const i64 r = blockIdx.x, row = rows[r];
    const float* from = features + (row - K + 1) * F;
    float* to = x + r * K * Y + first;
    if ((F | first | Y) % 4 == 0)
        window((const float4*)from, (const float4*)mean, (const float4*)std, (float4*)to, K, F / 4, (Y - first) / 4, Y / 4);
    else
        window(from, mean, std, to, K, F, Y - first, Y);
    if (threadIdx.x == 0) ts[r] = ts_gap[row];
}
