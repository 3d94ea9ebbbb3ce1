"""Cases of the kernels of rollout, replay and evaluation. The size is the number of lanes or rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import (
    batch_gather,
    eval_record,
    gae,
    nstep_write,
    per_mass,
    per_sample,
    per_update,
    rollout_end,
    rollout_serve,
    rollout_write,
    stage_seen,
)
from tests.kernels.cases_learn import N_STEP, SEED, A, bus, masks, valid_actions
from tests.kernels.registry import around, case, edges

P, H = 8, 128
STORED_ROWS = around(256, 8193)  # 8193 times H values are above a grid


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


@case(stage_seen, STORED_ROWS)
def seen(b: int, rng: Any) -> dict[str, Any]:
    return {"row": rng.integers(0, 500, b), "mask": masks(rng, b), "P": P, "H": H}


@case(stage_seen, STORED_ROWS[:4], "odd widths")
def seen_odd(b: int, rng: Any) -> dict[str, Any]:
    return seen(b, rng) | {"P": 3, "H": 21}


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
