// What needs the sums of all blocks is done by the last of them to end: a launch of its own would take longer.
//
// Launches of one kernel must never overlap, or a last block comes too early: the counter is one for the whole process. So
// one device a process works at a time, and a kernel that includes this is launched in one branch only of a region, and in
// none of the evaluator's, which run beside the training (tests/recipes/test_last_blocks.py).
#pragma once
#include "common.cuh"

__device__ u32 blocks_ended;  // of the launch under way, 0 between launches

// Whether this block is the last one of the grid to come here; it then sees what all others wrote before. All threads
// call it, once. Which block that is changes from run to run: what follows must not depend on it.
static __device__ bool last_block() {
    __shared__ u32 before;
    const u32 blocks = gridDim.x * gridDim.y;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        before = atomicInc(&blocks_ended, blocks - 1);  // the last one makes it 0 again
        __threadfence();
    }
    __syncthreads();
    return before == blocks - 1;
}
