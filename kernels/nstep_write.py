"""Turns steps into n-step transitions (Sutton 1988; Hessel et al. 2018) and writes them into replay, n steps late.

A ring keeps the last n + 1 steps of every backtest. After step t the transition that started at step t - n is complete:
its s' is the observation k steps later, where k = n, or less if the episode ended on the way. After an end the final
observation is the next step of the ring (NEXT_STEP autoreset), so truncation and horizon follow the same rule.
"""

from __future__ import annotations

import numpy as np

from kernels.rollout_write import staged_args
from kernels.spec import REAL, Arg, Kernel

NEVER = -1.0  # raw priority of a slot that must not be drawn: empty, or a transition that starts at a reset


def nstep_write(
    row: np.ndarray,
    private: np.ndarray,
    h_prev: np.ndarray,
    mask: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    valid: np.ndarray,
    done: np.ndarray,
    ring_row: np.ndarray,
    ring_private: np.ndarray,
    ring_h_prev: np.ndarray,
    ring_mask: np.ndarray,
    ring_action: np.ndarray,
    ring_reward: np.ndarray,
    ring_valid: np.ndarray,
    ring_done: np.ndarray,
    pushed: np.ndarray,
    max_priority: np.ndarray,
    to_row: np.ndarray,
    to_private: np.ndarray,
    to_h_prev: np.ndarray,
    to_action: np.ndarray,
    to_rewards: np.ndarray,
    to_n_used: np.ndarray,
    to_terminal: np.ndarray,
    to_next_row: np.ndarray,
    to_next_private: np.ndarray,
    to_next_h_prev: np.ndarray,
    to_next_mask: np.ndarray,
    priority: np.ndarray,
) -> None:
    """Step number s = pushed goes to ring row s % (n + 1); transition s - n goes to slots ((s - n) * B + b) % C."""
    sets, backtests = ring_row.shape
    n, step = sets - 1, int(pushed[0])
    at = step % sets
    ring_row[at], ring_private[at], ring_h_prev[at], ring_mask[at] = row, private, h_prev, mask
    ring_action[at], ring_reward[at], ring_valid[at], ring_done[at] = action, reward, valid, done
    pushed[0] += 1
    if step < n:
        return
    first = (step - n) * backtests % len(to_row)  # B divides C, so the block never wraps
    slots = slice(first, first + backtests)
    start = (step - n) % sets
    to_row[slots], to_private[slots], to_h_prev[slots] = ring_row[start], ring_private[start], ring_h_prev[start]
    to_action[slots] = ring_action[start]

    going = np.ones(backtests, bool)
    used = np.zeros(backtests, np.int32)
    terminal = np.zeros(backtests, bool)
    for i in range(n):
        j = (start + i) % sets
        to_rewards[slots, i] = ring_reward[j] * going
        used += going
        terminal |= going & (ring_done[j] == 2)
        going &= ring_done[j] == 0
    to_n_used[slots], to_terminal[slots] = used, terminal
    last, b = (start + used) % sets, np.arange(backtests)
    to_next_row[slots], to_next_mask[slots] = ring_row[last, b], ring_mask[last, b]
    to_next_private[slots], to_next_h_prev[slots] = ring_private[last, b], ring_h_prev[last, b]
    priority[slots] = np.where(ring_valid[start] != 0, max_priority, np.asarray(NEVER, priority.dtype))


TRANSITION = (  # name, dtype, trailing dimensions, meaning: what replay keeps of one transition
    ("row", "int32", "", "market row of s"),
    ("private", REAL, "P", "private state values at s"),
    ("h_prev", REAL, "H", "recurrent state before s"),
    ("action", "int32", "", "action taken at s"),
    ("rewards", REAL, "n", "unscaled rewards, ticks; 0 after the first n_used"),
    ("n_used", "int32", "", "k: steps from s to s', 1..n"),
    ("terminal", "uint8", "", "1: drawdown end, no bootstrap"),
    ("next_row", "int32", "", "market row of s'"),
    ("next_private", REAL, "P", "private state values at s'"),
    ("next_h_prev", REAL, "H", "recurrent state before s'"),
    ("next_mask", "uint8", "A", "valid actions at s'"),
)


def transition_args(role: str, lead: str, prefix: str = "") -> tuple[Arg, ...]:
    """Arguments for the arrays of a transition with leading dimension `lead`, in the order of TRANSITION."""
    return tuple(
        Arg(prefix + name, dtype, role, f"{lead},{tail}".rstrip(","), doc) for name, dtype, tail, doc in TRANSITION
    )


UNUSED = ("value", "log_mu")  # staged for the rollout only

KERNEL = Kernel(
    "nstep_write",
    (
        *staged_args("in", "B", skip=UNUSED),
        *staged_args("inout", "n1,B", "ring_", skip=UNUSED),
        Arg("pushed", "int64", "inout", "1", "steps put into the ring"),
        Arg("max_priority", REAL, "in", "1", "largest raw priority so far: that of new transitions"),
        *transition_args("inout", "C", "to_"),
        Arg("priority", REAL, "inout", "C", "raw priority; negative: never drawn"),
    ),
    nstep_write,
    launcher=lambda sizes, scalars: ((min(-(-sizes["B"] // 8), 4096), 4), (256,), 0),  # a warp a lane and part
    tolerance=(0.0, 0.0, "copies"),
    constants={"NEVER": NEVER},
)
