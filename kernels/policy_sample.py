"""Acting: the masked policy of every backtest, an action drawn from it, and what the rollout keeps of the draw."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kernels.heads import (
    CONSTANTS,
    N_ACTIONS,
    N_ATOMS,
    POLICY,
    VALUE,
    WIDTH,
    entropy_fraction,
    expected_q,
    masked_argmax,
    masked_policy,
)
from kernels.philox import Purpose, counter, uniform
from kernels.spec import REAL, Arg, Kernel, warp_a_row


@lru_cache(maxsize=2)
def _words(step: int, rows: int, seed: int) -> np.ndarray:
    """uint32 [rows]: a pure function, kept because an evaluation, which acts greedily, asks for the same each time."""
    return counter(np.array([step]), np.arange(rows, dtype=np.uint32), Purpose.ACTION, seed)[0]


def policy_sample(
    out: np.ndarray,
    mask: np.ndarray,
    step: np.ndarray,
    seed: int,
    eps: float,
    action: np.ndarray,
    log_mu: np.ndarray,
    value: np.ndarray,
    entropy_frac: np.ndarray,
    greedy: np.ndarray,
    q_greedy: np.ndarray,
) -> None:
    """mu = (1 - eps) pi + eps / n_valid over the valid actions, drawn by inverting its running sum.

    The floor keeps the ratio mu_new / mu_old of the policy loss bounded, and every valid action alive.
    """
    rows = np.arange(len(action))
    pi, log_pi = masked_policy(out[:, POLICY], mask)
    n_valid = (mask != 0).sum(axis=1).astype(out.dtype)
    mu = (1 - eps) * pi + (eps / n_valid)[:, None] * (mask != 0)
    u = uniform(_words(int(step[0]), len(action), seed), out.dtype)

    running = np.cumsum(mu, axis=1)
    # An action without mass repeats the running sum before it, so counting "<=" steps over it. u is at most 1 - 2^-24:
    # u * total rounds to less than total, whatever rounding made of the sum, so the count always finds an action.
    action[:] = (running <= u[:, None] * running[:, -1:]).sum(axis=1)
    log_mu[:] = np.log(mu[rows, action])
    value[:] = out[:, VALUE]
    entropy_frac[:] = entropy_fraction(-(pi * log_pi).sum(axis=1), n_valid)
    greedy[:] = masked_argmax(pi, mask)
    # The best action is the same on every evenly spaced support, so the atom's number stands for its value.
    q_greedy[:] = masked_argmax(expected_q(out, np.arange(N_ATOMS, dtype=out.dtype)), mask)


KERNEL = Kernel(
    "policy_sample",
    (
        Arg("out", REAL, "in", f"B,{WIDTH}", "head output of the acting pass"),
        Arg("mask", "uint8", "in", f"B,{N_ACTIONS}", "1: valid action; at least one a row"),
        Arg("step", "int64", "in", "1", "clock of the run: word of the random counter"),
        Arg("seed", "uint32", "scalar", doc="seed of the run"),
        Arg("eps", REAL, "scalar", doc="floor mixed into the policy"),
        Arg("action", "int32", "out", "B", "drawn from mu"),
        Arg("log_mu", REAL, "out", "B", "log mu(action)"),
        Arg("value", REAL, "out", "B", "V(s), scaled return"),
        Arg("entropy_frac", REAL, "out", "B", "H(pi) / log n_valid; 0 where one action is valid"),
        Arg("greedy", "int32", "out", "B", "valid argmax of pi"),
        Arg("q_greedy", "int32", "out", "B", "valid argmax of E[Z]: a diagnostic"),
    ),
    policy_sample,
    launcher=warp_a_row("B", warps=4),
    constants=CONSTANTS | {"PURPOSE_ACTION": int(Purpose.ACTION)},
)
