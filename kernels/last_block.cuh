// What needs the sums of all blocks is done by the last of them to end: a launch of its own would take longer.
#pragma once
#include "common.cuh"

__device__ u32 blocks_ended;  // of the launch under way, 0 between launches: no two launches of one kernel may overlap

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
