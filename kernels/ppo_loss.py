"""The rollout losses: clipped policy gradient, clipped value regression, entropy bonus, direction of the market.

Schulman et al. 2017 (PPO), equation 7 for the policy; the value clip as in Huang et al. 2022 ("The 37 implementation
details of PPO", detail 9), in units of scaled return; approx_kl is the k3 estimator of Schulman's "Approximating KL
divergence" (2020). All means run over the valid rows (a row that only reset its backtest is not), the direction's over
the valid rows whose label is known.
"""

from __future__ import annotations

import numpy as np

from kernels.heads import AUX, CONSTANTS, N_ACTIONS, POLICY, VALUE, WIDTH, entropy_fraction, log_softmax, masked_policy
from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def _shares(counted: np.ndarray, real: np.dtype) -> np.ndarray:
    """Weight of each row in a mean over the rows that count; all 0 when none does."""
    return counted.astype(real) / max(int(counted.sum()), 1)


def _policy(
    logits: np.ndarray,
    mask: np.ndarray,
    action: np.ndarray,
    log_mu_old: np.ndarray,
    advantage: np.ndarray,
    live: np.ndarray,
    eps: float,
    isv: np.ndarray,
) -> np.ndarray:
    """l_pi - entropy_coef * H -> its gradient by the policy logits [M, A]; writes the policy's slots.

    With mu = (1 - eps) pi + eps / n_valid and ratio r = mu(a) / mu_old(a): d log mu(a) / d logit_j =
    (1 - eps) pi_a (1[j = a] - pi_j) / mu_a, and d H / d logit_j = -pi_j (log pi_j + H).
    """
    clip, entropy_coef = isv[SLOTS["ppo_clip"]], isv[SLOTS["entropy_coef"]]
    rows, share = np.arange(len(action)), _shares(live, logits.dtype)
    pi, log_pi = masked_policy(logits, mask)
    n_valid = (mask != 0).sum(axis=1).astype(logits.dtype)
    pi_a = pi[rows, action]
    # Rows that do not count may hold anything: they get ratio 1 here and share 0.
    mu_a = np.where(live, (1 - eps) * pi_a + eps / n_valid, 1)
    log_ratio = np.where(live, np.log(mu_a) - log_mu_old, 0)
    ratio = np.exp(log_ratio)
    gain = np.where(live, advantage, 0)
    free, held = -gain * ratio, -gain * np.clip(ratio, 1 - clip, 1 + clip)
    entropy = -(pi * log_pi).sum(axis=1)

    isv[SLOTS["l_pi"]] = (np.maximum(free, held) * share).sum()
    isv[SLOTS["entropy"]] = (entropy * share).sum()
    isv[SLOTS["entropy_frac"]] = (entropy_fraction(entropy, n_valid) * share).sum()
    isv[SLOTS["approx_kl"]] = ((ratio - 1 - log_ratio) * share).sum()
    isv[SLOTS["clip_frac"]] = ((np.abs(ratio - 1) > clip) * share).sum()

    # d free / d log mu = free; where the clipped branch is the larger one, the ratio lies outside and moves nothing.
    d_log_mu = np.where(free >= held, free, 0) * (1 - eps) * pi_a / mu_a
    grad = pi * (entropy_coef * (log_pi + entropy[:, None]) - d_log_mu[:, None])
    grad[rows, action] += d_log_mu
    return grad * share[:, None]


def _value(
    value: np.ndarray, returns: np.ndarray, value_old: np.ndarray, live: np.ndarray, clip: float, isv: np.ndarray
) -> np.ndarray:
    """l_v = mean of max((v - R)^2, (v_clipped - R)^2) / 2 -> its gradient by v [M]; writes l_v and value_mean."""
    share = _shares(live, value.dtype)
    error = np.where(live, value - returns, 0)
    # The value itself is clipped and not its change: inside the clip the two errors are the same to the last bit.
    held = np.where(live, np.clip(value, value_old - clip, value_old + clip) - returns, 0)
    isv[SLOTS["l_v"]] = (np.maximum(error**2, held**2) * share).sum() / 2
    isv[SLOTS["value_mean"]] = (value * share).sum()
    # Where the clipped error is the larger one, v lies outside the clip and does not move it.
    return np.where(error**2 >= held**2, error, 0) * share


def _aux(logits: np.ndarray, label: np.ndarray, live: np.ndarray, isv: np.ndarray) -> np.ndarray:
    """l_aux = mean cross entropy over the live rows with a known label -> its gradient by the logits [M, 3]."""
    known = live & (label >= 0)
    share, rows, label = _shares(known, logits.dtype), np.arange(len(label)), np.where(known, label, 0)
    log_p = log_softmax(logits)
    isv[SLOTS["l_aux"]] = -(log_p[rows, label] * share).sum()
    grad = np.exp(log_p)
    grad[rows, label] -= 1
    return grad * share[:, None]


def ppo_loss(
    out: np.ndarray,
    action: np.ndarray,
    log_mu_old: np.ndarray,
    advantage: np.ndarray,
    returns: np.ndarray,
    value_old: np.ndarray,
    mask: np.ndarray,
    valid: np.ndarray,
    aux_label: np.ndarray,
    eps: float,
    value_clip: float,
    weight_policy: float,
    weight_value: float,
    weight_aux: float,
    d_out: np.ndarray,
    isv: np.ndarray,
) -> None:
    """total = weight_policy (l_pi - entropy_coef H) + weight_value l_v + weight_aux l_aux over the last M rows."""
    rows, d_rows, live = out[-len(action) :], d_out[-len(action) :], valid != 0
    d_policy = _policy(rows[:, POLICY], mask, action, log_mu_old, advantage, live, eps, isv)
    d_value = _value(rows[:, VALUE], returns, value_old, live, value_clip, isv)
    d_aux = _aux(rows[:, AUX], aux_label, live, isv)
    d_rows[:] = 0
    d_rows[:, POLICY] = weight_policy * d_policy
    d_rows[:, VALUE] = weight_value * d_value
    d_rows[:, AUX] = weight_aux * d_aux


KERNEL = Kernel(
    "ppo_loss",
    (
        Arg("out", REAL, "in", f"R,{WIDTH}", "head output of the joint batch; its last M rows are the rollout's"),
        Arg("action", "int32", "in", "M", "action taken, valid on valid rows"),
        Arg("log_mu_old", REAL, "in", "M", "log probability of it when acting, with the floor"),
        Arg("advantage", REAL, "in", "M", "normalised over the rollout"),
        Arg("returns", REAL, "in", "M", "value target, scaled return"),
        Arg("value_old", REAL, "in", "M", "V(s) when acting, scaled return"),
        Arg("mask", "uint8", "in", f"M,{N_ACTIONS}", "valid actions; at least one a row"),
        Arg("valid", "int8", "in", "M", "0: this row reset its backtest and counts nowhere"),
        Arg("aux_label", "int8", "in", "M", "0 down, 1 flat, 2 up, -1 unknown"),
        Arg("eps", REAL, "scalar", doc="floor mixed into the policy"),
        Arg("value_clip", REAL, "scalar", doc="clip of the value's change, scaled return"),
        Arg("weight_policy", REAL, "scalar"),
        Arg("weight_value", REAL, "scalar"),
        Arg("weight_aux", REAL, "scalar"),
        Arg(
            "d_out", REAL, "inout", f"R,{WIDTH}", "gradient of the total by `out`; the last M rows written, others kept"
        ),
        Arg(
            "isv",
            REAL,
            "inout",
            str(SIZE),
            "reads ppo_clip, entropy_coef; writes l_pi, l_v, l_aux (unweighted), entropy (nats), entropy_frac "
            "(H / log n_valid), approx_kl (k3), clip_frac, value_mean",
        ),
    ),
    ppo_loss,
    launcher=warp_a_row("M"),
    tolerance=(1e-5, 1e-4, "float32 exp and log of ratios, then sums over M rows"),
    constants=CONSTANTS | cuda_constants(),
)
