"""Fills the joint batch: rows 0:M from replay, rows M:2M from the finished rollout."""

from __future__ import annotations

import numpy as np

from kernels.nstep_write import transition_args
from kernels.spec import REAL, Arg, Kernel


def _take(source: np.ndarray, index: np.ndarray, out: np.ndarray, lead: int = 1) -> None:
    """out = source[index], the first `lead` dimensions of source taken as one. "clip" saves NumPy a buffer."""
    np.take(source.reshape(-1, *source.shape[lead:]), index, axis=0, out=out, mode="clip")


def batch_gather(
    slots: np.ndarray,
    index: np.ndarray,
    row: np.ndarray,
    private: np.ndarray,
    h_prev: np.ndarray,
    action: np.ndarray,
    rewards: np.ndarray,
    n_used: np.ndarray,
    terminal: np.ndarray,
    next_row: np.ndarray,
    next_private: np.ndarray,
    next_h_prev: np.ndarray,
    next_mask: np.ndarray,
    roll_row: np.ndarray,
    roll_private: np.ndarray,
    roll_h_prev: np.ndarray,
    roll_action: np.ndarray,
    roll_log_mu: np.ndarray,
    roll_mask: np.ndarray,
    roll_valid: np.ndarray,
    roll_value: np.ndarray,
    roll_advantage: np.ndarray,
    roll_returns: np.ndarray,
    market_label: np.ndarray,
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
    served_action: np.ndarray,
    served_log_mu: np.ndarray,
    served_mask: np.ndarray,
    served_valid: np.ndarray,
    served_value: np.ndarray,
    served_advantage: np.ndarray,
    served_returns: np.ndarray,
    served_aux_label: np.ndarray,
) -> None:
    """Encoder inputs are joint [2M, ...]; what only one half's losses read is [M, ...]."""
    m = len(slots)
    _take(row, slots, to_row[:m])
    _take(private, slots, to_private[:m])
    _take(h_prev, slots, to_h_prev[:m])
    _take(action, slots, to_action)
    _take(rewards, slots, to_rewards)
    _take(n_used, slots, to_n_used)
    _take(terminal, slots, to_terminal)
    _take(next_row, slots, to_next_row)
    _take(next_private, slots, to_next_private)
    _take(next_h_prev, slots, to_next_h_prev)
    _take(next_mask, slots, to_next_mask)

    _take(roll_row, index, to_row[m:], 3)
    _take(roll_private, index, to_private[m:], 3)
    _take(roll_h_prev, index, to_h_prev[m:], 3)
    _take(roll_action, index, served_action, 3)
    _take(roll_log_mu, index, served_log_mu, 3)
    _take(roll_mask, index, served_mask, 3)
    _take(roll_valid, index, served_valid, 3)
    _take(roll_value, index, served_value, 3)
    _take(roll_advantage, index, served_advantage, 3)
    _take(roll_returns, index, served_returns, 3)
    _take(market_label, to_row[m:], served_aux_label)


_ROLL = (
    ("row", "int32", "", "market row"),
    ("private", REAL, "P", "private state values"),
    ("h_prev", REAL, "H", "recurrent state before the row"),
    ("action", "int32", "", "action taken"),
    ("log_mu", REAL, "", "its log-probability when acting"),
    ("mask", "uint8", "A", "valid actions"),
    ("valid", "int8", "", "0: a reset, without any loss"),
    ("value", REAL, "", "V when acting"),
    ("advantage", REAL, "", "normalised"),
    ("returns", REAL, "", "value target, scaled"),
)

KERNEL = Kernel(
    "batch_gather",
    (
        Arg("slots", "int32", "in", "M", "replay slots"),
        Arg("index", "int32", "in", "M", "flat index into the [2, TM, B] arrays"),
        *transition_args("in", "C"),
        *(Arg("roll_" + name, dtype, "in", f"2,TM,B,{tail}".rstrip(","), doc) for name, dtype, tail, doc in _ROLL),
        Arg("market_label", "int8", "in", "N", "0 down, 1 flat, 2 up, -1 unknown"),
        Arg("to_row", "int32", "out", "M2", "market rows of the joint batch, M2 = 2M"),
        Arg("to_private", REAL, "out", "M2,P", "private state values"),
        Arg("to_h_prev", REAL, "out", "M2,H", "recurrent state"),
        *transition_args("out", "M", "to_")[3:],
        *(Arg("served_" + name, dtype, "out", f"M,{tail}".rstrip(","), doc) for name, dtype, tail, doc in _ROLL[3:]),
        Arg("served_aux_label", "int8", "out", "M", "label of the rollout rows; -1 where unknown"),
    ),
    batch_gather,
    launcher=lambda sizes, scalars: ((min(-(-sizes["M2"] // 8), 4096), 6), (256,), 0),  # a warp a row and part
    tolerance=(0.0, 0.0, "copies"),
)
