"""Columns of the head output `out` [R, W] and what every head kernel computes from them.

    0:231 Q logits (action * Z + atom) | 231:242 policy logits | 242 value | 243:246 aux | 246:256 padding

The helpers take their dtype from their arrays and assume that every row has at least one valid action (hold always is).
"""

from __future__ import annotations

import numpy as np

N_ACTIONS = 11
N_ATOMS = 21
WIDTH = 256  # W: columns of `out`, padded to what a GEMM likes
N_AUX = 3  # down, flat, up
Q = slice(0, N_ACTIONS * N_ATOMS)
POLICY = slice(Q.stop, Q.stop + N_ACTIONS)
VALUE = POLICY.stop  # one column
AUX = slice(VALUE + 1, VALUE + 1 + N_AUX)
USED = AUX.stop  # columns from here on are padding: zero weights, zero gradient

# #define'd before the CUDA source of every kernel that reads `out`.
CONSTANTS = {
    "N_ACTIONS": N_ACTIONS,
    "N_ATOMS": N_ATOMS,
    "N_AUX": N_AUX,
    "HEAD_WIDTH": WIDTH,
    "HEAD_Q": Q.start,
    "HEAD_POLICY": POLICY.start,
    "HEAD_VALUE": VALUE,
    "HEAD_AUX": AUX.start,
    "HEAD_USED": USED,
}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def masked_policy(logits: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Policy logits [R, A], mask [R, A] -> pi and log pi [R, A]; both exactly 0 at invalid actions.

    log pi of an invalid action is held at 0 and not at minus infinity, so that pi * log pi is 0 there and not NaN.
    """
    valid = mask != 0
    shifted = np.where(valid, logits, -np.inf)
    shifted -= shifted.max(axis=1, keepdims=True)
    exps = np.exp(shifted)
    total = exps.sum(axis=1, keepdims=True)
    return exps / total, np.where(valid, shifted - np.log(total), 0)


def entropy_fraction(entropy: np.ndarray, n_valid: np.ndarray) -> np.ndarray:
    """H / log n_valid [R]: 1 for a uniform policy; 0 where a single valid action leaves no choice, as H is 0."""
    return entropy / np.log(np.maximum(n_valid, 2))


def atom_values(v_min: float, v_max: float, dtype: np.dtype) -> np.ndarray:
    """z_i [Z], evenly spaced from v_min to v_max."""
    return np.linspace(v_min, v_max, N_ATOMS).astype(dtype)


def expected_q(out: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """E[Z(s, a)] [R, A] under the softmax over the atoms of each action."""
    # Atoms first: NumPy reduces a long contiguous last axis several times faster than many short ones.
    logits = np.ascontiguousarray(out[:, Q].reshape(-1, N_ATOMS).T)
    exps = np.exp(logits - logits.max(axis=0))
    return ((atoms[:, None] * exps).sum(axis=0) / exps.sum(axis=0)).reshape(-1, N_ACTIONS)


def masked_argmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The best valid action [R]; the lowest index wins a tie."""
    return np.where(mask != 0, scores, -np.inf).argmax(axis=1)
