// A thread a controller. Signals and outputs are different slots, so no controller reads what another one writes.
#include "common.cuh"

__constant__ int SIGNAL[] = CTRL_SIGNAL;
__constant__ float FACTOR[] = CTRL_FACTOR;
__constant__ float TARGET[] = CTRL_TARGET;  // 0: the output itself
__constant__ float UP[] = CTRL_UP;          // what a signal above its band multiplies the output by; below: 1 / this
__constant__ float DOWN[] = CTRL_DOWN;

extern "C" __global__ void controllers(float* isv, const i64* step, const u8* frozen, const float* bounds) {
    const int i = threadIdx.x;
    if (i >= N_CTRL) return;
    float* output = isv + ISV_GAMMA + i;
    float* state = isv + ISV_STATE_GAMMA_0 + i * N_STATE;
    const float reading = isv[SIGNAL[i]];
    bool present = isfinite(reading) && reading > 0.0f;
    // The KL of a rollout of another length says nothing about this one.
    if (i == CTRL_LENGTH) present = present && isv[ISV_ROLLOUT_KL_LEN] == isv[ISV_ROLLOUT_LEN];
    const float total = state[STATE_SUM] + (present ? reading : 0.0f);
    const float count = state[STATE_COUNT] + (present ? 1.0f : 0.0f);
    if ((step[0] + 1) % CTRL_PERIOD != 0) {
        state[STATE_SUM] = total;
        state[STATE_COUNT] = count;
        return;
    }
    state[STATE_SUM] = 0.0f;
    state[STATE_COUNT] = 0.0f;
    const bool seen = count > 0.0f;
    float estimate = state[STATE_ESTIMATE];
    if (seen) {
        const bool first = state[STATE_UPDATES] == 0.0f;
        const float rate = CTRL_RATE, signal = state[STATE_SIGNAL_VARIANCE];
        float noise = state[STATE_NOISE_VARIANCE];
        const float innovation = total / count * FACTOR[i] - estimate;
        noise = first ? 0.0f : noise + rate * (innovation * innovation - noise);
        const float both = signal + noise;
        const float gain = first ? 1.0f : fmaxf(signal / (both > 0.0f ? both : 1.0f), (float)CTRL_MIN_GAIN);
        const float change = gain * innovation;
        estimate += change;
        state[STATE_ESTIMATE] = estimate;
        state[STATE_NOISE_VARIANCE] = noise;
        state[STATE_SIGNAL_VARIANCE] = first ? 0.0f : signal + rate * (change * change - signal);
        state[STATE_GAIN] = gain;
        state[STATE_UPDATES] += 1.0f;
    }
    const float own = i == CTRL_GAMMA ? 1.0f / (1.0f - *output) : *output;
    const float target = TARGET[i] == 0.0f ? own : TARGET[i], band = CTRL_BAND;
    state[STATE_TARGET] = target;
    const bool above = estimate > band * target, below = estimate * band < target;
    if (!seen || frozen[i] || above == below) return;
    const float moved = fminf(fmaxf(own * (above ? UP[i] : DOWN[i]), bounds[2 * i]), bounds[2 * i + 1]);
    *output = i == CTRL_GAMMA ? 1.0f - 1.0f / moved : moved;
}
