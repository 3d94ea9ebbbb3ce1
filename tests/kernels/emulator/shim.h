// CUDA on a CPU, as far as kernels/*.cu use it: comes before a kernel's text, which g++ then takes for C++. A block's
// threads are fibers that run in turn, each until it waits for others; blocks run one after the other. So arithmetic,
// indices and barriers are those of a GPU; timing, warps that run at once and the memory model are not.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -- the language --

#define __global__
#define __device__
#define __constant__ static
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emu_shared")))  // emulator.py rewrites `extern __shared__`
#define EXPORT __attribute__((visibility("default")))             // all else is hidden (-fvisibility)
#define QUIET __attribute__((no_sanitize("thread")))              // not the kernel's own access to memory

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class A, class B> static inline auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static inline auto max(A a, B b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

template <class To, class From>
static inline To emu_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}
static inline float __int_as_float(int v) { return emu_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
static inline int __float_as_int(float v) { return emu_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }

// One thread runs at a time, so that a plain exchange is atomic.
static inline int atomicMax(int* p, int value) {
    const int old = *p;
    if (value > old) *p = value;
    return old;
}
static inline unsigned atomicInc(unsigned* p, unsigned most) {
    const unsigned old = *p;
    *p = old >= most ? 0 : old + 1;
    return old;
}
static inline void __threadfence() {}

// -- functions that CUDA rounds worse than the CPU --

namespace emu {
// `exact`, off by up to `ulps` units in the last place: as much as the CUDA C++ Programming Guide allows ("Mathematical
// Functions"). How far, the argument decides, as on a GPU: the same argument gives the same bits.
static inline float off(double exact, float argument, float ulps) {
    const float rounded = (float)exact;
    if (!isfinite(rounded) || rounded == 0.0f) return rounded;
    unsigned hash = emu_bits<unsigned>(argument) * 0x9E3779B9u;
    hash = (hash ^ hash >> 15) * 0x85EBCA6Bu;
    const double share = (hash >> 8) / 8388608.0 - 1.0;  // [-1, 1)
    const double unit = nextafterf(fabsf(rounded), INFINITY) - fabsf(rounded);
    return (float)(exact + share * (ulps - 0.5) * unit);  // rounding takes the other half
}
static inline float exp_(float x) { return off(exp((double)x), x, 1.0f); }
static inline float exp2_(float x) { return off(exp2((double)x), x, 2.0f); }
static inline float log_(float x) { return off(log((double)x), x, 1.0f); }
static inline float log1p_(float x) { return off(log1p((double)x), x, 1.0f); }
static inline float tanh_(float x) { return off(tanh((double)x), x, 2.0f); }
static inline float pow_(float x, float y) { return off(pow((double)x, (double)y), x, 4.0f); }
// 2^(x log2 e), where the product is rounded before the power is taken: what makes it worse for large arguments.
static inline float fast_exp(float x) { return off(exp2((double)(x * 1.44269504f)), x, 2.0f); }
static inline float fast_divide(float a, float b) {
    if (fabsf(b) > 0x1p126f) return isfinite(a) ? 0.0f : NAN;
    return off((double)a / b, b, 2.0f);
}
// The instructions themselves, which take and give numbers below 2^-126 as zeros.
static inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
static inline float exp2_fast(float x) { return flushed(off(exp2((double)flushed(x)), x, 2.0f)); }
static inline float reciprocal_fast(float x) { return flushed(off(1.0 / flushed(x), x, 1.0f)); }
}  // namespace emu
#define expf emu::exp_
#define exp2f emu::exp2_
#define logf emu::log_
#define log1pf emu::log1p_
#define tanhf emu::tanh_
#define powf emu::pow_
#define __expf emu::fast_exp
#define __fdividef emu::fast_divide

// -- threads --

struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {
constexpr int MOST = 1024, STACK = 256 << 10;  // threads of a block, bytes of a thread
constexpr int SHARED = 227 << 10, GUARD = 4096;  // most dynamic shared memory of a block; bytes behind it

struct Fiber {
    void* stack_pointer;  // where it goes on
    bool done;
};
static Fiber fibers[MOST];
static char* stacks;
static void* scheduler;   // stack pointer of the scheduler while a thread runs
static int threads, me;   // of the block; the one that runs
static long moves;        // arrivals at barriers and ends of threads: none in a round of all threads is a deadlock
static char fault[256];   // why the launch was given up
static void (*entry)(void**);
static void** arguments;
alignas(256) static char dynamic[SHARED + GUARD];

// Keeps the registers that a call has to keep, goes over to another stack, takes up its registers.
extern "C" void emu_switch(void** from, void* to);
asm(R"(
.text
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

QUIET static void yield() { emu_switch(&fibers[me].stack_pointer, scheduler); }

// Gives the launch up; the thread that calls it never goes on.
template <class... T>
QUIET static void fail(const char* format, T... values) {
    if (!fault[0]) snprintf(fault, sizeof fault, format, values...);
    for (;;) yield();
}

struct Barrier {
    int arrived;
    unsigned round;
    short who[MOST];
};
static Barrier of_block, of_warp[MOST / 32], of_shuffle[MOST / 32], named[16];
}  // namespace emu

#ifdef EMULATE_RACES
#include "race.h"
#else
namespace emu {
static void touch(const void*, int, bool, const void*) {}
static void order(const short*, int) {}
}  // namespace emu
#endif

namespace emu {
// Waits until `expected` threads are there; orders their accesses to memory, if it is that kind of barrier.
QUIET static void wait(Barrier& barrier, int expected, bool ordering = true) {
    const unsigned round = barrier.round;
    barrier.who[barrier.arrived++] = me;
    ++moves;
    if (barrier.arrived == expected) {
        if (ordering) order(barrier.who, expected);
        barrier.arrived = 0;
        ++barrier.round;
    }
    while (barrier.round == round) yield();
}

QUIET static void named_barrier(int id, int expected) { wait(named[id], expected); }

// A warp's lanes meet to exchange values. That orders no access to memory: a shuffle is no __syncwarp.
QUIET static void meet() { wait(of_shuffle[me / 32], 32, false); }

alignas(16) static char slots[MOST][16];

// The value that lane `from` of this warp passes.
template <class T>
QUIET static T exchange(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= sizeof slots[0], "a value of a lane");
    if (mask != ~0u) fail("a shuffle of a part of a warp is not emulated");
    memcpy(slots[me], &value, sizeof(T));
    meet();
    T got;
    memcpy(&got, slots[me / 32 * 32 + from % 32], sizeof(T));
    meet();  // before the next exchange overwrites it
    return got;
}

// cp.async: a copy is on its way until copies_wait. A read before that finds what was there.
struct Copy {
    void* to;
    const void* from;
    int group;
};
constexpr int WAITING = 64;
struct Copies {
    Copy waiting[WAITING];
    int n, group;
};
static Copies copies[MOST];

QUIET static void copy_async(void* to, const void* from) {
    Copies& own = copies[me];
    if (own.n == WAITING) fail("more than %d copies of a thread are on their way: raise WAITING", WAITING);
    if (((size_t)to | (size_t)from) % 16) fail("cp.async: an address is not a multiple of 16");
    own.waiting[own.n++] = {to, from, own.group};
}
QUIET static void copies_end() { ++copies[me].group; }
// Does all copies but those of the `pending` youngest ended groups.
QUIET __attribute__((noinline)) static void copies_wait(int pending) {
    Copies& own = copies[me];
    int kept = 0;
    for (int i = 0; i < own.n; ++i) {
        const Copy copy = own.waiting[i];
        if (copy.group < own.group - pending) {
            touch(copy.to, 16, true, __builtin_return_address(0));
            memcpy(copy.to, copy.from, 16);
        } else {
            own.waiting[kept++] = copy;
        }
    }
    own.n = kept;
}

// mma.sync.m16n8k8 of TF32 factors (the places of a lane's values: kernels/mma.cuh). The hardware's sums are a little
// worse than these, which are rounded once.
QUIET static void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static float a_of[MOST][4], b_of[MOST][2];
    const auto tf32 = [](unsigned bits) { return emu_bits<float>(bits & 0xffffe000u); };
    const int lane = me % 32, warp = me - lane, g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; ++i) a_of[me][i] = tf32(a[i]);
    for (int i = 0; i < 2; ++i) b_of[me][i] = tf32(b[i]);
    meet();
    for (int i = 0; i < 4; ++i) {
        const int row = i / 2, column = 2 * q + i % 2;  // rows g and g + 8
        double sum = c[i];
        for (int k = 0; k < 8; ++k)
            sum += (double)a_of[warp + g * 4 + k % 4][row + k / 4 * 2] * b_of[warp + column * 4 + k % 4][k / 4];
        c[i] = (float)sum;
    }
    meet();
}
}  // namespace emu

static inline void __syncthreads() { emu::wait(emu::of_block, emu::threads); }
static inline void __syncwarp() { emu::wait(emu::of_warp[emu::me / 32], 32); }

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from) { return emu::exchange(mask, value, from); }
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int other) {
    return emu::exchange(mask, value, emu::me % 32 ^ other);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, int by) {
    const int lane = emu::me % 32;
    return emu::exchange(mask, value, lane >= by ? lane - by : lane);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, int by) {
    const int lane = emu::me % 32;
    return emu::exchange(mask, value, lane + by < 32 ? lane + by : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned all = predicate ? 1u << emu::me % 32 : 0u;
    for (int o = 1; o < 32; o *= 2) all |= __shfl_xor_sync(mask, all, o);
    return all;
}

// -- launches --

extern "C" {
extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));  // there if anything is __shared__
extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));
}

namespace emu {
QUIET static void thread() {
    entry(arguments);
    fibers[me].done = true;
    ++moves;
    for (;;) yield();
}

QUIET static void prepare_block(unsigned shared) {
    // NaN, or -1: what a thread reads before anything was written there shows in its result.
    memset(dynamic, 0xff, shared + GUARD);
    if (__start_emu_shared) memset(__start_emu_shared, 0xff, __stop_emu_shared - __start_emu_shared);
    memset(&of_block, 0, sizeof of_block);
    memset(of_warp, 0, sizeof of_warp);
    memset(of_shuffle, 0, sizeof of_shuffle);
    memset(named, 0, sizeof named);
    for (int t = 0; t < threads; ++t) {
        copies[t].n = copies[t].group = 0;
        void** top = (void**)(stacks + (t + 1) * (size_t)STACK) - 3;  // aligned as after a call
        *--top = (void*)thread;
        for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that emu_switch takes up
        fibers[t] = {top, false};
    }
}

QUIET static void run_block(bool backwards) {
    for (int left = threads; left && !fault[0];) {
        const long before = moves;
        left = 0;
        for (int i = 0; i < threads && !fault[0]; ++i) {
            me = backwards ? threads - 1 - i : i;
            if (fibers[me].done) continue;
            threadIdx = {me % blockDim.x, me / blockDim.x % blockDim.y, me / blockDim.x / blockDim.y};
            emu_switch(&scheduler, fibers[me].stack_pointer);
            left += !fibers[me].done;
        }
        if (left && moves == before && !fault[0])
            snprintf(fault, sizeof fault,
                     "block (%u, %u, %u): %d of %d threads wait at a barrier for others that never come", blockIdx.x,
                     blockIdx.y, blockIdx.z, left, threads);
    }
}

QUIET static bool untouched(unsigned shared) {
    for (int i = 0; i < GUARD; ++i)
        if (dynamic[shared + i] != (char)0xff) return false;
    return true;
}
}  // namespace emu

// Runs all blocks. backwards: last block and last thread first, which must give the same bits. watch: looks for races.
// Returns what went wrong, or nothing.
extern "C" EXPORT QUIET const char* emu_launch(
    void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* block, unsigned shared,
    int backwards, int watch) {
    using namespace emu;
    if (!stacks) stacks = (char*)aligned_alloc(4096, MOST * (size_t)STACK);  // only what is touched takes memory
    if (!stacks) return "no memory for the threads' stacks";
    entry = kernel;
    emu::arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads = block[0] * block[1] * block[2];
    fault[0] = 0;
    if (threads < 1 || threads > MOST) return "no such launch: a block has 1 to 1024 threads";
    if (shared > SHARED) return "no such launch: a block gets 227 KiB of shared memory at most";
#ifdef EMULATE_RACES
    begin_watch(watch, shared);
#endif
    const unsigned blocks = grid[0] * grid[1] * grid[2];
    for (unsigned i = 0; i < blocks && !fault[0]; ++i) {
        const unsigned b = backwards ? blocks - 1 - i : i;
        blockIdx = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
        prepare_block(shared);
#ifdef EMULATE_RACES
        begin_block();
#endif
        run_block(backwards);
        if (!fault[0] && !untouched(shared))
            snprintf(fault, sizeof fault, "block (%u, %u, %u) writes behind its %u bytes of shared memory", blockIdx.x,
                     blockIdx.y, blockIdx.z, shared);
    }
#ifdef EMULATE_RACES
    end_watch();
#endif
    return fault;
}

// A kernel takes its arguments as CUDA's launch hands them over: an address each, types those of its own parameters.
namespace emu {
template <int... I> struct Numbers {};
template <class... T, int... I>
static void call(void (*kernel)(T...), void** values, Numbers<I...>) { kernel(*(T*)values[I]...); }
template <class... T>
static void call(void (*kernel)(T...), void** values) {
    call(kernel, values, Numbers<__integer_pack(sizeof...(T))...>());
}
}  // namespace emu
#define LAUNCHABLE(kernel) \
    extern "C" EXPORT void launch_##kernel(void** values) { emu::call(kernel, values); }
