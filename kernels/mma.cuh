// Products of small matrices on the tensor cores, as exact as float32: a factor is the sum of two TF32 numbers, and of the
// four products of their parts the smallest is left out (2^-22 of the whole). One warp multiplies 16 x 8 by 8 x 8.
// g = lane / 4, q = lane % 4.
#pragma once
#include "common.cuh"

struct Parts { u32 high, low; };

__device__ inline Parts parts_of(float v) {
    const u32 high = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;  // rounded to the 10 bits that TF32 has
    return {high, __float_as_uint(v - __uint_as_float(high))};
}

// A lane's values: rows g and g + 8 (r0, r1) at columns q and q + 4 (c0, c1).
struct FactorA {
    u32 high[4], low[4];
    __device__ FactorA() {}
    __device__ FactorA(float r0c0, float r1c0, float r0c1, float r1c1) {
        const float v[4] = {r0c0, r1c0, r0c1, r1c1};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Parts p = parts_of(v[i]);
            high[i] = p.high; low[i] = p.low;
        }
    }
};

// A lane's values: rows q and q + 4 at column g.
struct FactorB {
    u32 high[2], low[2];
    __device__ FactorB(float r0, float r1) {
        const Parts a = parts_of(r0), b = parts_of(r1);
        high[0] = a.high; low[0] = a.low; high[1] = b.high; low[1] = b.low;
    }
};

__device__ inline void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b. A lane's c: rows g (0, 1) and g + 8 (2, 3) at columns 2 q and 2 q + 1.
__device__ inline void multiply_add(float (&c)[4], const FactorA& a, const FactorB& b) {
    mma(c, a.low, b.high);
    mma(c, a.high, b.low);
    mma(c, a.high, b.high);
}
