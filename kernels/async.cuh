// Copies from global to shared memory that go on beside the thread's other work.
#pragma once
#include "common.cuh"

// 16 bytes from global to shared memory, seen by the calling thread after copies_wait.
__device__ inline void copy_async(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
// Ends a group of copies.
__device__ inline void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the `pending` youngest groups are still on their way.
template <int pending>
__device__ inline void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }
