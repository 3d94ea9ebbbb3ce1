"""All twelve controllers in one kernel: each measures at every step and moves its output every PERIOD steps.

1. The reading is the mean of the signal's slot over the steps since the last move (0, NaN and infinity are no signal).
2. It is blended into the estimate with a Wiener gain: signal variance / (signal + noise variance), floored. Noise
   variance is the moving average of squared innovations, signal variance that of squared changes of the estimate.
3. When the estimate leaves [target / 1.5, 1.5 target], the output is multiplied or divided by 1.5, as Schulman et al.
   2017 (section 4) do with the penalty of adaptive-KL PPO; the rollout length doubles or halves.
4. The output is clamped. A frozen controller measures and blends, but never moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.isv import GROUPS, OUTPUTS, SIZE, SLOTS, STATE, STATE_PER_CONTROLLER, cuda_constants
from kernels.spec import REAL, Arg, Kernel

PERIOD = 100  # steps
BAND = 1.5
STEP = 1.5
RATE = 0.25  # of both variances
MIN_GAIN = 0.5  # a reading is already a mean over PERIOD steps; a slower blend would overshoot its own steps


@dataclass(frozen=True)
class Controller:
    """One row of the table. Bounds are of the output (of the horizon for gamma), in multiples of its start for lr."""

    output: str
    signal: str
    target: float  # of signal * factor; OWN: the output itself
    direction: int  # +1: a larger signal moves the output up
    low: float
    high: float
    factor: float = 1.0
    step: float = STEP
    relative: bool = False


OWN = 0.0

TABLE: tuple[Controller, ...] = (
    # horizon 1 / (1 - gamma) -> 2 x mean holding rows; 10 to 200 rows are gamma 0.9 to 0.995
    Controller("gamma", "hold_rows", OWN, +1, 10.0, 200.0, factor=2.0),
    Controller("tau", "target_distance", 0.01, +1, 0.005, 0.05),
    Controller("ppo_clip", "approx_kl", 0.01, -1, 0.1, 0.3),
    Controller("entropy_coef", "entropy_frac", 0.4, -1, 0.01, 0.1),
    Controller("per_alpha", "priority_ess", 0.5, +1, 0.3, 0.9),
    Controller("reward_scale", "target_std", 2.0, -1, 0.05, 1.0),
    Controller("rollout_len", "rollout_kl", 0.02, -1, 16.0, 128.0, step=2.0),
    *(Controller(f"lr_{g}", f"update_rms_{g}", 1e-3, -1, 0.5, 2.0, relative=True) for g in GROUPS),
)
assert tuple(c.output for c in TABLE) == OUTPUTS
N = len(TABLE)
GAMMA, LENGTH = OUTPUTS.index("gamma"), OUTPUTS.index("rollout_len")

_OUT = slice(SLOTS[OUTPUTS[0]], SLOTS[OUTPUTS[0]] + N)
_STATE0 = SLOTS[f"state_{OUTPUTS[0]}_0"]
_SIGNAL = np.array([SLOTS[c.signal] for c in TABLE])
_FACTOR, _TARGET = np.array([c.factor for c in TABLE]), np.array([c.target for c in TABLE])
_DIRECTION, _STEP = np.array([c.direction for c in TABLE]), np.array([c.step for c in TABLE])


def controllers(isv: np.ndarray, step: np.ndarray, frozen: np.ndarray, bounds: np.ndarray) -> None:
    """Runs before the clock is advanced: acts when step + 1, the number of steps done, is a multiple of PERIOD."""
    state = isv[_STATE0 : _STATE0 + N * STATE_PER_CONTROLLER].reshape(N, STATE_PER_CONTROLLER)
    total, count = state[:, STATE.index("sum")], state[:, STATE.index("count")]
    reading = isv[_SIGNAL]
    present = np.isfinite(reading) & (reading > 0)
    # The KL of a rollout of another length says nothing about this one; after a move it takes up to 2 T steps to come.
    present[LENGTH] &= isv[SLOTS["rollout_kl_len"]] == isv[SLOTS["rollout_len"]]
    total += np.where(present, reading, 0)
    count += present
    if (int(step[0]) + 1) % PERIOD == 0:
        seen = count > 0
        _blend(state, total / np.maximum(count, 1) * _FACTOR.astype(isv.dtype), seen)
        _move(isv[_OUT], state, seen & (frozen == 0), bounds)
        total[:] = 0
        count[:] = 0


def _blend(state: np.ndarray, reading: np.ndarray, seen: np.ndarray) -> None:
    """The first reading becomes the estimate; each later one moves it by gain * innovation."""
    estimate, noise, signal, gain = (state[:, i] for i in range(4))
    updates = state[:, STATE.index("updates")]
    rate, innovation = np.asarray(RATE, state.dtype), reading - estimate
    first = updates == 0
    new_noise = np.where(first, 0, noise + rate * (innovation**2 - noise))
    both = signal + new_noise
    new_gain = np.maximum(signal / np.where(both > 0, both, 1), np.asarray(MIN_GAIN, state.dtype))
    new_gain = np.where(first, 1, new_gain)
    change = new_gain * innovation
    new_signal = np.where(first, 0, signal + rate * (change**2 - signal))
    for old, new in ((estimate, estimate + change), (noise, new_noise), (signal, new_signal), (gain, new_gain)):
        np.copyto(old, new, where=seen, casting="same_kind")
    updates += seen


def _move(output: np.ndarray, state: np.ndarray, may: np.ndarray, bounds: np.ndarray) -> None:
    """One bounded step of every output whose estimate is outside its band; `output` [12] is written in place."""
    own = output.copy()
    own[GAMMA] = 1 / (1 - output[GAMMA])
    target = np.where(_TARGET == OWN, own, _TARGET).astype(output.dtype)
    state[:, STATE.index("target")] = target
    estimate, band = state[:, STATE.index("estimate")], np.asarray(BAND, output.dtype)
    sign = (estimate > band * target).astype(np.int8) - (estimate * band < target)
    moved = own * (_STEP ** (sign * _DIRECTION)).astype(output.dtype)
    moved = np.clip(moved, bounds[:, 0], bounds[:, 1])
    moved[GAMMA] = 1 - 1 / moved[GAMMA]
    np.copyto(output, moved, where=may & (sign != 0))


def bounds_of(start: np.ndarray) -> np.ndarray:
    """[12, 2] clamps for the start values [12] (both of the horizon for gamma): a start value is never outside."""
    unit = np.where([c.relative for c in TABLE], start, 1.0)
    low = np.minimum([c.low for c in TABLE] * unit, start)
    high = np.maximum([c.high for c in TABLE] * unit, start)
    return np.stack([low, high], axis=1)


def _cuda_table() -> dict[str, Any]:
    """The table as initialisers of constant arrays; UP and DOWN multiply the output of a signal beyond its band."""
    columns: dict[str, list[Any]] = {
        "SIGNAL": _SIGNAL.tolist(),
        "FACTOR": _FACTOR.tolist(),
        "TARGET": _TARGET.tolist(),
        "UP": (_STEP**_DIRECTION).tolist(),
        "DOWN": (_STEP**-_DIRECTION).tolist(),
    }
    return (
        {f"CTRL_{name}": "{" + ", ".join(map(str, values)) + "}" for name, values in columns.items()}
        | {"CTRL_PERIOD": PERIOD, "CTRL_RATE": RATE, "CTRL_MIN_GAIN": MIN_GAIN, "CTRL_BAND": BAND}
        | {"CTRL_GAMMA": GAMMA, "CTRL_LENGTH": LENGTH, "N_CTRL": N, "N_STATE": STATE_PER_CONTROLLER}
        | {f"STATE_{name.upper()}": i for i, name in enumerate(STATE)}
    )


KERNEL = Kernel(
    "controllers",
    (
        Arg("isv", REAL, "inout", str(SIZE), "reads signals, writes outputs and controller state"),
        Arg("step", "int64", "in", "1", "clock of the run: steps done before this one"),
        Arg("frozen", "uint8", "in", str(N), "1: measures, but never moves"),
        Arg("bounds", REAL, "in", f"{N},2", "lowest and highest output; of the horizon for gamma"),
    ),
    controllers,
    launcher=lambda sizes, scalars: ((1,), (32,), 0),
    tolerance=(1e-6, 1e-5, "float32 rounding; a move is all or nothing"),
    constants=cuda_constants() | _cuda_table(),
)
