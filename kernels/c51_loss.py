"""The Q loss: categorical (C51) cross entropy on a double-DQN n-step target, with importance weights.

Bellemare, Dabney, Munos 2017, Algorithm 1; van Hasselt, Guez, Silver 2016 (online network chooses, target network
judges); Schaul et al. 2016 (weights and priorities). The gradient goes into the online logits of the action taken and
nowhere else: target, bootstrap and choice of a* are constants.
"""

from __future__ import annotations

import numpy as np

from kernels.heads import (
    CONSTANTS,
    N_ACTIONS,
    N_ATOMS,
    WIDTH,
    Q,
    atom_values,
    expected_q,
    log_softmax,
    masked_argmax,
)
from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def project(probs: np.ndarray, moved: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Distribution with mass probs [M, Z] at moved [M, Z] -> the same on the fixed `atoms` [Z]: [M, Z].

    The dense form of Algorithm 1: sum_j p_j max(0, 1 - |clip(Tz_j) - z_i| / dz). No scatter, so one fixed order.
    """
    dz = (atoms[-1] - atoms[0]) / (N_ATOMS - 1)
    at = (np.clip(moved, atoms[0], atoms[-1]) - atoms[0]) / dz  # [M, Z] in atoms
    weight = at[:, None, :] - np.arange(N_ATOMS, dtype=probs.dtype)[:, None]  # [M, i, j]
    np.abs(weight, out=weight)
    np.subtract(1, weight, out=weight)
    np.maximum(weight, 0, out=weight)
    return np.matmul(weight, probs[:, :, None])[:, :, 0]


def c51_loss(
    out: np.ndarray,
    next_online: np.ndarray,
    next_target: np.ndarray,
    action: np.ndarray,
    next_mask: np.ndarray,
    rewards: np.ndarray,
    n_used: np.ndarray,
    terminal: np.ndarray,
    is_weight: np.ndarray,
    v_min: float,
    v_max: float,
    weight_q: float,
    d_out: np.ndarray,
    priority: np.ndarray,
    isv: np.ndarray,
) -> None:
    """loss = weight_q / M * sum_m is_weight_m * CE_m over rows 0:M of `out`; their d_out is written whole."""
    m, real = len(action), out.dtype
    rows = np.arange(m)
    gamma, scale = isv[SLOTS["gamma"]], isv[SLOTS["reward_scale"]]
    atoms = atom_values(v_min, v_max, real)

    powers = gamma ** np.arange(rewards.shape[1], dtype=real)
    gain = scale * (rewards * powers).sum(axis=1)  # [M] scaled n-step reward
    discount = gamma ** n_used.astype(real) * (terminal == 0)
    best = masked_argmax(expected_q(next_online, atoms), next_mask)
    probs = np.exp(log_softmax(next_target[:, Q].reshape(m, N_ACTIONS, N_ATOMS)[rows, best]))  # [M, Z]
    target = project(probs, gain[:, None] + discount[:, None] * atoms, atoms)

    log_p = log_softmax(out[:m, Q].reshape(m, N_ACTIONS, N_ATOMS)[rows, action])
    p = np.exp(log_p)
    priority[:] = -(target * log_p).sum(axis=1)
    d_out[:m] = 0
    d_logits = d_out[:m, Q].reshape(m, N_ACTIONS, N_ATOMS)  # a view: only rows and columns are split
    d_logits[rows, action] = (weight_q / m * is_weight)[:, None] * (p - target)

    bootstrap = (probs * atoms).sum(axis=1)
    isv[SLOTS["l_q"]] = (is_weight * priority).mean()
    isv[SLOTS["target_std"]] = (gain + discount * bootstrap).std()
    isv[SLOTS["edge_mass"]] = (target[:, 0] + target[:, -1]).mean()
    isv[SLOTS["q_mean"]] = (p * atoms).sum(axis=1).mean()


KERNEL = Kernel(
    "c51_loss",
    (
        Arg("out", REAL, "in", f"R,{WIDTH}", "head output of the joint batch; rows 0:M are the replay samples"),
        Arg("next_online", REAL, "in", f"M,{WIDTH}", "online head output at s'"),
        Arg("next_target", REAL, "in", f"M,{WIDTH}", "target network's head output at s'"),
        Arg("action", "int32", "in", "M", "action taken at s"),
        Arg("next_mask", "uint8", "in", f"M,{N_ACTIONS}", "valid actions at s'; at least one a row"),
        Arg("rewards", REAL, "in", "M,n", "unscaled rewards, ticks; 0 after the first n_used"),
        Arg("n_used", "int32", "in", "M", "k: rows from s to s', 1..n"),
        Arg("terminal", "uint8", "in", "M", "1: drawdown end, no bootstrap (a truncation is 0 and bootstraps)"),
        Arg("is_weight", REAL, "in", "M", "importance weight"),
        Arg("v_min", REAL, "scalar", doc="lowest atom, scaled return"),
        Arg("v_max", REAL, "scalar", doc="highest atom"),
        Arg("weight_q", REAL, "scalar", doc="weight of this loss in the total"),
        Arg("d_out", REAL, "inout", f"R,{WIDTH}", "gradient of the total by `out`; rows 0:M written, the others kept"),
        Arg("priority", REAL, "out", "M", "cross entropy of each row, unweighted, nats"),
        Arg(
            "isv",
            REAL,
            "inout",
            str(SIZE),
            "reads gamma, reward_scale; writes l_q (weighted mean cross entropy), target_std (population standard "
            "deviation of G + gamma^k E[Z'(s', a*)], not clipped), edge_mass (mean target mass on the outer atoms), "
            "q_mean (mean E[Z(s, a)])",
        ),
    ),
    c51_loss,
    launcher=warp_a_row("M"),
    tolerance=(1e-5, 1e-4, "float32 exp and log over 21 atoms, then sums over M rows"),
    constants=CONSTANTS | cuda_constants(),
)
