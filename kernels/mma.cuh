// Products of small matrices on the tensor cores: one warp multiplies 16 x 8 by 8 x 8. g = lane / 4, q = lane % 4.
// EXACT: as exact as float32: a factor is the sum of two TF32 numbers, and of the four products of their parts the smallest
// is left out (2^-22 of the whole). Otherwise factors are TF32, prepared by factor().
#pragma once
#include "common.cuh"

// v as a factor. The tensor cores cut a TF32 factor's last 13 bits off, on average 2^-11 / (2 ln 2) of its value; with as
// much added before, nothing is lost on average, exact values stay, and NaN, too (adding half a unit to a NaN's bits may
// leave 0). At most 0.73 units of the last place kept are off, rounding would leave 0.5.
constexpr float UNCUT = 1.000352f;
template <bool EXACT>
__device__ inline float factor(float v) { return EXACT ? v : v * UNCUT; }
template <bool EXACT>
__device__ inline float4 factor4(float4 v) {
    return make_float4(factor<EXACT>(v.x), factor<EXACT>(v.y), factor<EXACT>(v.z), factor<EXACT>(v.w));
}

struct Parts { u32 high, low; };

__device__ inline Parts parts_of(float v) {
    const u32 high = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;  // rounded to the 10 bits that TF32 has
    return {high, __float_as_uint(v - __uint_as_float(high))};
}

// N values of a lane.
template <bool EXACT, int N>
struct Factor {
    u32 high[N], low[EXACT ? N : 1];
    __device__ void set(int i, float v) {
        if constexpr (EXACT) {
            const Parts p = parts_of(v);
            high[i] = p.high; low[i] = p.low;
        } else {
            high[i] = __float_as_uint(v);
        }
    }
};

// A lane's values: rows g and g + 8 (r0, r1) at columns q and q + 4 (c0, c1).
template <bool EXACT>
struct FactorA : Factor<EXACT, 4> {
    __device__ FactorA() {}
    __device__ FactorA(float r0c0, float r1c0, float r0c1, float r1c1) {
        this->set(0, r0c0); this->set(1, r1c0); this->set(2, r0c1); this->set(3, r1c1);
    }
};

// A lane's values: rows q and q + 4 at column g.
template <bool EXACT>
struct FactorB : Factor<EXACT, 2> {
    __device__ FactorB(float r0, float r1) { this->set(0, r0); this->set(1, r1); }
};

__device__ inline void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b. A lane's c: rows g (0, 1) and g + 8 (2, 3) at columns 2 q and 2 q + 1.
template <bool EXACT>
__device__ inline void multiply_add(float (&c)[4], const FactorA<EXACT>& a, const FactorB<EXACT>& b) {
    if constexpr (EXACT) {
        mma(c, a.low, b.high);
        mma(c, a.high, b.low);
    }
    mma(c, a.high, b.high);
}
