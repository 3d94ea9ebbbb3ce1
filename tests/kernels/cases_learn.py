"""Cases of the kernels of acting, losses, optimiser, signals and controllers.

Where a float decides something (an argmax, a draw, a side of a clip), the arguments keep a margin that float32 can't
cross: every backend then takes the same decision. The size is the number of rows or lanes unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels import (
    adam_arena,
    c51_loss,
    controllers,
    grad_norm,
    policy_sample,
    ppo_loss,
    signals,
)
from kernels.controllers import TABLE, bounds_of
from kernels.heads import AUX, POLICY, VALUE, WIDTH, expected_q, masked_policy
from kernels.isv import GROUPS, SIZE, SLOTS
from kernels.philox import Purpose, counter, uniform
from tests.kernels.registry import around, case, edges

A, Z, N_STEP = 11, 21, 3
MARGIN = 1e-4
SEED, STEP = 1234, 2**33 + 5
LOSS_ROWS = around(256, 1025)

START = {
    "gamma": 0.93,
    "tau": 0.01,
    "ppo_clip": 0.2,
    "entropy_coef": 0.03,
    "per_alpha": 0.6,
    "reward_scale": 0.2,
    "rollout_len": 32.0,
} | {f"lr_{g}": 2e-3 for g in GROUPS}


def bus(rng: Any, **values: float) -> np.ndarray:
    """Every slot holds something, so that a write to a wrong one shows."""
    isv = rng.uniform(0.1, 1, SIZE)
    for name, value in (START | values).items():
        isv[SLOTS[name]] = value
    return isv


def masks(rng: Any, rows: int) -> np.ndarray:
    """Hold is always valid; in about every ninth row nothing else is."""
    mask = (rng.random((rows, A)) < rng.choice([0.0, 0.6], (rows, 1), p=[0.1, 0.9])).astype(np.uint8)
    mask[:, 2] = 1
    return mask


def valid_actions(rng: Any, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, rng.random(mask.shape), -1).argmax(axis=1)


def lead(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """By how much the best valid action of each row is ahead of the second; infinity when it is the only one."""
    best = np.sort(np.where(mask, scores, -np.inf), axis=1)
    return best[:, -1] - best[:, -2]


def settle(n: int, draw: Callable[[int], dict[str, np.ndarray]], unsure: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Draws rows anew until none of them is close to a decision."""
    arrays = draw(n)
    while (bad := unsure(**arrays)).any():
        for name, fresh in draw(int(bad.sum())).items():
            arrays[name][bad] = fresh
    return arrays


@case(policy_sample, (1, 7, 8, 9, 1025))
def acting(b: int, rng: Any) -> dict[str, Any]:
    eps = 0.02
    u = uniform(counter(np.array([STEP]), np.arange(b, dtype=np.uint32), Purpose.ACTION, SEED)[0], np.float64)

    def draw(n: int) -> dict[str, np.ndarray]:
        return {"out": rng.normal(0, 2, (n, WIDTH)), "mask": masks(rng, n)}

    def unsure(out: np.ndarray, mask: np.ndarray) -> np.ndarray:
        pi, _ = masked_policy(out[:, POLICY], mask)
        running = np.cumsum((1 - eps) * pi + eps * mask / mask.sum(axis=1, keepdims=True), axis=1)
        q = expected_q(out, np.arange(Z, dtype=np.float64))
        close = np.abs(running - u[:, None]).min(axis=1) < MARGIN
        return close | (lead(pi, mask) < MARGIN) | (lead(q, mask) < MARGIN)

    return settle(b, draw, unsure) | {"step": [STEP], "seed": SEED, "eps": eps}


@case(c51_loss, LOSS_ROWS)
def q_loss(m: int, rng: Any) -> dict[str, Any]:
    atoms = np.linspace(-10, 10, Z)

    def draw(n: int) -> dict[str, np.ndarray]:
        return {"next_online": rng.normal(0, 2, (n, WIDTH)), "next_mask": masks(rng, n)}

    def unsure(next_online: np.ndarray, next_mask: np.ndarray) -> np.ndarray:
        return lead(expected_q(next_online, atoms), next_mask) < 10 * MARGIN

    n_used = rng.integers(1, N_STEP + 1, m)
    return settle(m, draw, unsure) | {
        "R": 2 * m,
        "action": rng.integers(0, A, m),
        "rewards": rng.normal(0, 20, (m, N_STEP)) * (np.arange(N_STEP) < n_used[:, None]),
        "n_used": n_used,
        "terminal": rng.random(m) < 0.3,
        "is_weight": rng.uniform(0.1, 1, m),
        "v_min": -10.0,
        "v_max": 10.0,
        "weight_q": 0.5,
        "isv": bus(rng),
    }


@case(ppo_loss, LOSS_ROWS)
def rollout_losses(m: int, rng: Any) -> dict[str, Any]:
    """Ratios and values lie on both sides of their clips (both 0.2), never near one."""
    eps = 0.02
    out, mask = rng.normal(0, 2, (2 * m, WIDTH)), masks(rng, m)
    action, rows = valid_actions(rng, mask), np.arange(m)
    pi, _ = masked_policy(out[m:, POLICY], mask)
    log_mu = np.log((1 - eps) * pi[rows, action] + eps / mask.sum(axis=1))

    def inside_or_outside() -> np.ndarray:
        return rng.choice([-1, 1], m) * np.where(rng.random(m) < 0.5, rng.uniform(0, 0.15, m), rng.uniform(0.3, 0.6, m))

    value = out[m:, VALUE]
    return {
        "out": out,
        "mask": mask,
        "action": action,
        "log_mu_old": log_mu - inside_or_outside(),
        "advantage": rng.choice([-1, 1], m) * rng.uniform(0.1, 2, m),
        "returns": value + rng.choice([-1, 1], m) * rng.uniform(0.5, 3, m),
        "value_old": value - inside_or_outside(),
        "valid": np.r_[1, rng.random(m - 1) < 0.8],
        "aux_label": rng.integers(-1, AUX.stop - AUX.start, m),
        "eps": eps,
        "value_clip": 0.2,
        "weight_policy": 1.0,
        "weight_value": 0.5,
        "weight_aux": 0.5,
        "isv": bus(rng),
    }


@case(grad_norm, edges())
def norm(s: int, rng: Any) -> dict[str, Any]:
    return {"S": s, "isv": bus(rng)}


@case(adam_arena, edges())
def adam(s: int, rng: Any) -> dict[str, Any]:
    """The five groups, as far as there are floats for them; the last float of a larger arena is no group's."""
    grad, segments = rng.normal(0, 2, s), min(s, len(GROUPS))
    cuts = np.linspace(0, s - (s > 64), segments + 1).astype(int)
    return {
        "grad": grad,
        "m": rng.normal(0, 0.1, s),
        "v": rng.uniform(0.01, 1, s),
        "start": cuts[:-1],
        "stop": cuts[1:],
        "group": np.arange(segments),
        "norm": [np.linalg.norm(grad)],
        "count": [7],
        "bad": [0],
        "isv": bus(rng),
        "b1": 0.9,
        "b2": 0.99,
        "adam_eps": 1e-8,
        "grad_clip": 1.0,
        "lr_decay_steps": 1000,
    }


@case(adam_arena, (257,), "a norm that is not finite, no decay")
def adam_bad(s: int, rng: Any) -> dict[str, Any]:
    return adam(s, rng) | {"norm": [np.inf], "lr_decay_steps": 0}


@case(controllers, (1,), "moves")
def control(size: int, rng: Any, step: int = 99) -> dict[str, Any]:
    """Each signal is about 3, 1 or 0.3 of its target, far from both edges of its band; one is absent, one frozen."""
    isv, start = bus(rng), np.array([START[c.output] for c in TABLE])
    start[0] = 1 / (1 - start[0])
    ratio = rng.choice([0.3, 1.0, 3.0], len(TABLE)) * rng.uniform(0.95, 1.05, len(TABLE))
    for c, own, r in zip(TABLE, start, ratio):
        reading, slot = r * (c.target or own) / c.factor, SLOTS[f"state_{c.output}_0"]
        isv[SLOTS[c.signal]] = reading
        isv[slot : slot + 8] = reading * c.factor, 0.04 * reading**2, 0.02 * reading**2, 0.7, 99 * reading, 99, 3, 1
    isv[SLOTS["rollout_kl_len"]] = START["rollout_len"]
    isv[SLOTS["update_rms_q"]] = 0
    return {"isv": isv, "step": [step], "frozen": np.arange(len(TABLE)) == 4, "bounds": bounds_of(start)}


@case(controllers, (1,), "between two moves")
def control_waits(size: int, rng: Any) -> dict[str, Any]:
    return control(size, rng, step=41)


@case(signals, edges())
def measured(b: int, rng: Any) -> dict[str, Any]:
    valid = np.r_[1, rng.random(b - 1) < 0.9]
    closed = valid * (rng.random(b) < 0.3)
    return {
        "valid": valid,
        "ordered": valid * (rng.random(b) < 0.4),
        "closed": closed,
        "closed_pnl": closed * rng.integers(-5000, 5000, b),
        "closed_rows": closed * rng.integers(1, 60, b),
        "sums": [50.0, 900.0, 23.0, 3000.0, 1800.0, -40.0],
        "trades": [4321],
        "step": [STEP],
        "isv": bus(rng),
    }
