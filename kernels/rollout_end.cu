// One thread: five numbers.
#include "common.cuh"

extern "C" __global__ void rollout_end(float* isv, const i64* active, int* length, i64* epoch, i64* position) {
    const int at = (int)active[0];
    isv[ISV_ROLLOUT_KL] = isv[ISV_APPROX_KL];
    isv[ISV_ROLLOUT_KL_LEN] = (float)length[at];
    length[at] = (int)isv[ISV_ROLLOUT_LEN];
    epoch[0] += 1;
    position[0] = 0;
}
