// What every kernel shares: grid-stride loops, Philox4x32-10. Inlined into the source before
// NVRTC compiles it, because cupy's cache does not see headers.
#pragma once

#ifndef INFINITY  // NVRTC has no math.h
#define INFINITY __int_as_float(0x7f800000)
#endif

#define private private_  // an argument's name in the tables, a keyword in C++

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef long long i64;

// A grid-stride loop: right for any grid, also one smaller or larger than n.
#define FOR_EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

#define PHILOX_KEY1 0x666F7868u  // kernels/philox.py: KEY1

struct Philox { u32 x0, x1, x2, x3; };

// Philox4x32-10 (Salmon et al. 2011, section 3.3); counter words as in kernels/philox.py: counter().
__device__ inline Philox philox(i64 step, u32 row, u32 purpose, u32 seed) {
    u32 x0 = (u32)(u64)step, x1 = (u32)((u64)step >> 32), x2 = row, x3 = purpose;
    u32 k0 = seed, k1 = PHILOX_KEY1;
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = (u64)0xD2511F53u * x0, p1 = (u64)0xCD9E8D57u * x2;
        const u32 y0 = (u32)(p1 >> 32) ^ x1 ^ k0, y2 = (u32)(p0 >> 32) ^ x3 ^ k1;
        x0 = y0; x1 = (u32)p1; x2 = y2; x3 = (u32)p0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return {x0, x1, x2, x3};
}

// [0, 1) with 24 bits, exact in float32.
__device__ inline float uniform24(u32 word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }
