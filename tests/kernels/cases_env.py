"""Cases of the environment's step: lanes in the middle of their episodes, some ending, some waiting for a reset."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import env_step
from kernels.env_step import PARKED
from tests.env.books import build, random_market, small_config
from tests.kernels.registry import around, case

STEPS = 12


@case(env_step, around(256, 20001))
def lanes(b: int, rng: Any) -> dict[str, Any]:
    """The state after STEPS random valid actions; some lanes have no next start or a given one."""
    cfg = small_config(lots_large=3, episode_len=16, drawdown_ticks=12.0)
    env, _, store = build(random_market(int(rng.integers(2**31)), rows=300), cfg, b)
    env.reset_all()
    for step in range(STEPS):
        env.step(np.where(env.mask, rng.random(env.mask.shape), -1).argmax(axis=1).astype(np.int32))
        store["clock.step"][0] = step
    kind = rng.integers(0, 4, b)
    env.start_row[kind == 1] = PARKED
    env.start_row[kind == 2] = rng.choice(env.starts, int((kind == 2).sum()))
    arrays = {name.rpartition(".")[2]: array for name, array in store.items()}
    return {a.name: arrays[a.name] for a in env_step.KERNEL.args if a.role in ("in", "inout") and a.name in arrays} | {
        "action": rng.integers(0, 11, b),
        "seed": cfg.learn.seed,
        "lots_large": cfg.env.lots_large,
        "inventory_penalty": cfg.env.inventory_penalty,
        "message_cost": cfg.env.message_cost,
        "drawdown_scale": round(cfg.env.drawdown_ticks * 1000),
        "hold_scale": cfg.env.episode_len,
    }
