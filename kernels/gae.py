"""Generalised advantage estimation over the finished rollout (Schulman et al. 2016, equation 16), then normalisation.

With NEXT_STEP autoreset the row after a done row holds the value of the final observation, so one rule serves both
ends: bootstrap from the next row's value unless the episode is terminal (done = 2), and stop the recursion at any end.
A reset row (valid = 0) is no transition: its advantage is 0, and nothing is carried through it.
"""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel, one_block

STD_FLOOR = 1e-8  # as in CleanRL: a rollout without any spread gives advantages of 0, not of infinity


def gae(
    isv: np.ndarray,
    reward: np.ndarray,
    value: np.ndarray,
    valid: np.ndarray,
    done: np.ndarray,
    bootstrap: np.ndarray,
    length: np.ndarray,
    active: np.ndarray,
    lam: float,
    advantage: np.ndarray,
    returns: np.ndarray,
) -> None:
    """Writes rows 0:T of buffer 1 - active: advantage [2, TM, B] normalised over the valid rows, returns scaled.

    returns = (advantage before normalisation) + value, the target of the value loss.
    """
    buffer = 1 - active[0]
    rows = length[buffer]
    gamma, scale = isv[SLOTS["gamma"]], isv[SLOTS["reward_scale"]]
    adv, v, valid, done = advantage[buffer, :rows], value[buffer, :rows], valid[buffer, :rows] != 0, done[buffer, :rows]

    carried = np.zeros_like(bootstrap)
    next_value = bootstrap
    for t in range(rows - 1, -1, -1):
        delta = scale * reward[buffer, t] + gamma * next_value * (done[t] != 2) - v[t]
        carried = (delta + gamma * lam * (done[t] == 0) * carried) * valid[t]
        adv[t] = carried
        next_value = v[t]
    returns[buffer, :rows] = adv + v

    count = max(int(valid.sum()), 1)
    mean = adv.sum() / count  # invalid rows hold 0 and add nothing
    centred = (adv - mean) * valid
    std = np.sqrt((centred * centred).sum() / count)
    adv[:] = centred / (std + np.asarray(STD_FLOOR, adv.dtype))


KERNEL = Kernel(
    "gae",
    (
        Arg("isv", REAL, "in", str(SIZE), "reads gamma, reward_scale"),
        Arg("reward", REAL, "in", "2,TM,B", "unscaled ticks"),
        Arg("value", REAL, "in", "2,TM,B", "V when acting, scaled return"),
        Arg("valid", "int8", "in", "2,TM,B", "0: reset row"),
        Arg("done", "int8", "in", "2,TM,B", "0 no, 1 truncated, 2 terminal"),
        Arg("bootstrap", REAL, "in", "B", "value after the last row"),
        Arg("length", "int32", "in", "2", "T of each buffer"),
        Arg("active", "int64", "in", "1", "the buffer that is not read"),
        Arg("lam", REAL, "scalar", doc="lambda"),
        Arg("advantage", REAL, "inout", "2,TM,B", "mean 0, population standard deviation 1 over valid rows; else 0"),
        Arg("returns", REAL, "inout", "2,TM,B", "value target, scaled return; equals value where invalid"),
    ),
    gae,
    launcher=one_block,
    tolerance=(1e-5, 1e-4, "sums over T*B advantages in float32"),
    constants=cuda_constants() | {"STD_FLOOR": STD_FLOOR},
)
