// N neighbouring floats, read and written at once: 4 where every width is a multiple of 4, 2 or 1 elsewhere.
#pragma once
#include "common.cuh"

template <int N>
struct alignas(4 * N) Piece {
    float v[N];
    __device__ float& operator[](int k) { return v[k]; }
    __device__ float operator[](int k) const { return v[k]; }
};

template <int N>
__device__ inline Piece<N> load(const float* at) { return *(const Piece<N>*)at; }
template <int N>
__device__ inline void store(float* at, const Piece<N>& piece) { *(Piece<N>*)at = piece; }

// Columns column, column + 1, ... of the row [1, 0, 0, 0]: what stands behind activations for the next layer's bias.
template <int N>
__device__ inline Piece<N> one_and_zeros(int column) {
    Piece<N> piece;
#pragma unroll
    for (int k = 0; k < N; ++k) piece[k] = column + k == 0 ? 1.0f : 0.0f;
    return piece;
}
