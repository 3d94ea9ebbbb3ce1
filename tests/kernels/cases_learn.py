"""Cases of the kernels of acting, losses, optimiser, rollout, replay and controllers.

Where a float decides something (an argmax, a draw, a side of a clip), the arguments keep a margin that float32 can't
cross: every backend then takes the same decision. The size is the number of rows or lanes unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels import (
    adam_arena,
    batch_gather,
    c51_loss,
    controllers,
    eval_record,
    gae,
    grad_norm,
    nstep_write,
    per_mass,
    per_sample,
    per_update,
    policy_sample,
    ppo_loss,
    rollout_end,
    rollout_serve,
    rollout_write,
    signals,
)
from kernels.controllers import TABLE, bounds_of
from kernels.heads import AUX, POLICY, VALUE, WIDTH, expected_q, masked_policy
from kernels.isv import GROUPS, SIZE, SLOTS
from kernels.philox import Purpose, counter, uniform
from tests.kernels.registry import around, case, edges

A, Z, P, H, N_STEP = 11, 21, 8, 128, 3
MARGIN = 1e-4
SEED, STEP = 1234, 2**33 + 5
LOSS_ROWS = around(256, 1025)
STORED_ROWS = around(256, 8193)  # 8193 times H = 128 values are above a grid

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


def episodes(rng: Any, rows: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    """valid and done [rows, B] as NEXT_STEP autoreset makes them: a reset row follows a done one."""
    valid, done = np.ones((rows, b), np.int8), np.zeros((rows, b), np.int8)
    over = rng.random(b) < 0.2
    for t in range(rows):
        valid[t] = ~over
        over = ~over & (rng.random(b) < 0.25)
        done[t] = over * rng.integers(1, 3, b)
    return valid, done


def stored(rng: Any, shape: tuple[int, ...], prefix: str = "") -> dict[str, np.ndarray]:
    """The integers of stored steps with leading dimensions `shape`."""
    rows = int(np.prod(shape))
    mask = masks(rng, rows)
    valid, done = episodes(rng, shape[-2] if len(shape) > 1 else 1, rows // (shape[-2] if len(shape) > 1 else 1))
    arrays = {"row": rng.integers(0, 500, rows), "mask": mask, "action": valid_actions(rng, mask)}
    arrays |= {"valid": valid, "done": done}
    return {prefix + name: x.reshape(*shape, *((A,) if name == "mask" else ())) for name, x in arrays.items()}


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


@case(gae, around(256, 65537))
def advantages(b: int, rng: Any, longest: int = 4) -> dict[str, Any]:
    """Rows of the finished buffer after its T, and the whole other buffer, are left alone."""
    steps = [episodes(rng, longest, b) for _ in range(2)]
    shape = (2, longest, b)
    return {
        "isv": bus(rng),
        "reward": rng.normal(0, 3, shape),
        "value": rng.normal(0, 2, shape),
        "valid": np.stack([valid for valid, _ in steps]),
        "done": np.stack([done for _, done in steps]),
        "length": [longest - 1, longest],
        "active": [1],
        "lam": 0.8,
    }


@case(rollout_write, STORED_ROWS, "appends")
def append(b: int, rng: Any, filled: int = 1) -> dict[str, Any]:
    longest = 4 if b < 1000 else 2
    arrays = stored(rng, (b,)) | stored(rng, (2, longest, b), "to_")
    return arrays | {"P": P, "H": H, "length": [longest, 2], "active": [1], "filled": [filled]}


@case(rollout_write, STORED_ROWS, "closes the finished rollout")
def close(b: int, rng: Any) -> dict[str, Any]:
    return append(b, rng, filled=2)


@case(rollout_end, (1,))
def boundary(size: int, rng: Any) -> dict[str, Any]:
    isv = bus(rng, rollout_len=64.0)
    return {"isv": isv, "active": [1], "length": [16, 32], "epoch": [5], "position": [3]}


@case(rollout_serve, around(256, 65537))
def serve(m: int, rng: Any, position: int = 1) -> dict[str, Any]:
    """The finished buffer holds three of four rows, so B = M lanes give three batches an epoch."""
    valid = rng.integers(0, 2, (2, 4, m))
    return {
        "active": [1],
        "length": [3, 4],
        "epoch": [2**20 + 3],
        "position": [position],
        "valid": valid,
        "seed": SEED,
        "M": m,
    }


@case(rollout_serve, (257,), "begins an epoch")
def serve_anew(m: int, rng: Any) -> dict[str, Any]:
    return serve(m, rng, position=3)


@case(nstep_write, STORED_ROWS)
def transitions(b: int, rng: Any, pushed: int = 9) -> dict[str, Any]:
    """Replay holds two blocks of B. The ring holds one history that the staged step ends, and an older step."""
    ring, c = stored(rng, (N_STEP + 1, b), "ring_"), 2 * b
    valid, done = episodes(rng, N_STEP + 1, b)
    order = (np.arange(N_STEP) + pushed - N_STEP) % (N_STEP + 1)
    ring["ring_valid"][order], ring["ring_done"][order] = valid[:-1], done[:-1]
    return (
        stored(rng, (b,))
        | {"valid": valid[-1], "done": done[-1]}
        | ring
        | {f"to_{name}": x for name, x in replayed(rng, c).items()}
        | {"P": P, "H": H, "n": N_STEP, "pushed": [pushed], "max_priority": [3.5]}
    )


@case(nstep_write, (9,), "the ring is not full yet")
def transitions_wait(b: int, rng: Any) -> dict[str, Any]:
    return transitions(b, rng, pushed=1)


def replayed(rng: Any, c: int) -> dict[str, np.ndarray]:
    """The integers of `c` transitions."""
    mask = masks(rng, c)
    return {
        "row": rng.integers(0, 500, c),
        "action": valid_actions(rng, mask),
        "n_used": rng.integers(1, N_STEP + 1, c),
        "terminal": rng.random(c) < 0.2,
        "next_row": rng.integers(0, 500, c),
        "next_mask": mask,
    }


@case(batch_gather, STORED_ROWS)
def gather(m: int, rng: Any) -> dict[str, Any]:
    c, longest, lanes = m + 40, 2, m // 2 + 3
    rolled = stored(rng, (2, longest, lanes), "roll_")
    del rolled["roll_done"]
    return (
        replayed(rng, c)
        | rolled
        | {"slots": rng.integers(0, c, m), "index": rng.integers(0, 2 * longest * lanes, m)}
        | {"market_label": rng.integers(-1, 3, 500), "P": P, "H": H, "n": N_STEP, "M2": 2 * m}
    )


def priorities(rng: Any, c: int) -> np.ndarray:
    """Exponential, with slots that hold nothing and slots of no loss."""
    p = rng.exponential(size=c)
    p[1:][rng.random(c - 1) < 0.2] = -1
    p[1:][rng.random(c - 1) < 0.05] = 0
    return p


@case(per_mass, edges(), rounded=("mass", "block"))
def mass(c: int, rng: Any) -> dict[str, Any]:
    return {"isv": bus(rng), "priority": priorities(rng, c), "G": per_mass.n_blocks(c)}


@case(per_sample, around(256, 65537))
def sample(m: int, rng: Any) -> dict[str, Any]:
    """Replay holds 16 M + 5 slots: above a grid for the largest M, and not a multiple of a block."""
    c = 16 * m + 5
    masses, block = np.zeros(c, np.int32), np.zeros((per_mass.n_blocks(c), 3), np.int64)
    per_mass.per_mass(bus(rng), priorities(rng, c), masses, block)
    return {
        "isv": bus(rng),
        "step": [50_000],
        "mass": masses,
        "block": block,
        "seed": SEED,
        "beta0": 0.4,
        "M": m,
    }


@case(per_update, edges())
def update(m: int, rng: Any) -> dict[str, Any]:
    """Half as many slots again as draws, so many are drawn more than once; one loss is NaN and one below zero."""
    c = m + m // 2 + 1
    loss = rng.exponential(size=m)
    loss[m // 2 :][:2] = [-1e-8, np.nan][: len(loss[m // 2 :][:2])]
    return {"slots": rng.integers(0, c, m), "loss": loss, "priority": priorities(rng, c), "max_priority": [1.0]}


@case(eval_record, around(256, 65537))
def record(b: int, rng: Any) -> dict[str, Any]:
    lines = 6 if b < 1000 else 2
    arrays: dict[str, Any] = {"cursor": [1]}
    for name, dtype in eval_record.RECORDED:
        if dtype != "real":
            arrays[name] = rng.integers(-100, 100, b)
            arrays[f"log_{name}"] = rng.integers(-100, 100, (lines, b))
    return arrays | {"T": lines}
