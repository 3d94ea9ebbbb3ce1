"""Appends one step of all backtests to the rollout being collected.

A rollout of T rows closes one step late: the value of the observation after its last row is the bootstrap of GAE, and
that value is the first thing the next step knows. So the write after T rows first stores its value as `bootstrap`,
turns to the other buffer, and becomes row 0 there. The finished buffer is then `1 - active`, and stays untouched until
the next close.
"""

from __future__ import annotations

import numpy as np

from kernels.spec import REAL, Arg, Kernel


def rollout_write(
    row: np.ndarray,
    private: np.ndarray,
    h_prev: np.ndarray,
    mask: np.ndarray,
    value: np.ndarray,
    action: np.ndarray,
    log_mu: np.ndarray,
    reward: np.ndarray,
    valid: np.ndarray,
    done: np.ndarray,
    length: np.ndarray,
    active: np.ndarray,
    filled: np.ndarray,
    bootstrap: np.ndarray,
    to_row: np.ndarray,
    to_private: np.ndarray,
    to_h_prev: np.ndarray,
    to_mask: np.ndarray,
    to_value: np.ndarray,
    to_action: np.ndarray,
    to_log_mu: np.ndarray,
    to_reward: np.ndarray,
    to_valid: np.ndarray,
    to_done: np.ndarray,
) -> None:
    """Buffers are [2, TM, B, ...]; `filled` is the number of rows in the active one, 0..length[active]."""
    if filled[0] == length[active[0]]:
        bootstrap[:] = value
        active[0] = 1 - active[0]
        filled[0] = 0
    at = active[0], filled[0]
    to_row[at] = row
    to_private[at] = private
    to_h_prev[at] = h_prev
    to_mask[at] = mask
    to_value[at] = value
    to_action[at] = action
    to_log_mu[at] = log_mu
    to_reward[at] = reward
    to_valid[at] = valid
    to_done[at] = done
    filled[0] += 1


STAGED = (  # name, dtype, trailing dimensions, meaning: one step of every backtest
    ("row", "int32", "", "market row seen"),
    ("private", REAL, "P", "private state values at that row"),
    ("h_prev", REAL, "H", "recurrent state before that row"),
    ("mask", "uint8", "A", "valid actions"),
    ("value", REAL, "", "V of the observation, scaled return"),
    ("action", "int32", "", "action taken"),
    ("log_mu", REAL, "", "log-probability of the acting mixture"),
    ("reward", REAL, "", "reward of the transition, unscaled ticks"),
    ("valid", "int8", "", "0: the step was a reset"),
    ("done", "int8", "", "0 no, 1 truncated, 2 drawdown (terminal)"),
)


def staged_args(role: str, lead: str, prefix: str = "", skip: tuple[str, ...] = ()) -> tuple[Arg, ...]:
    """Arguments for the staged arrays with leading dimensions `lead`, in the order of STAGED."""
    return tuple(
        Arg(prefix + name, dtype, role, f"{lead},{tail}".rstrip(","), doc)
        for name, dtype, tail, doc in STAGED
        if name not in skip
    )


KERNEL = Kernel(
    "rollout_write",
    (
        *staged_args("in", "B"),
        Arg("length", "int32", "in", "2", "T of each buffer"),
        Arg("active", "int64", "inout", "1", "buffer being filled"),
        Arg("filled", "int64", "inout", "1", "rows in it"),
        Arg("bootstrap", REAL, "inout", "B", "value of the observation after the last row of the finished buffer"),
        *staged_args("inout", "2,TM,B", "to_"),
    ),
    rollout_write,
    launcher=lambda sizes, scalars: ((min(max(-(-sizes["B"] * sizes["H"] // 1024), 1), 4096), 3), (256,), 0),
    tolerance=(0.0, 0.0, "copies"),
)
