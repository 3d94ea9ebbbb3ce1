"""Random books for the environment's tests: thin or deep, with unknown sizes, missing levels, sessions, equal times."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainer.config import StudyConfig, build_config
from trainer.device.base import NumpyDevice
from trainer.device.fields import Field, Store, allocate
from trainer.env.environment import Environment
from trainer.env.fields import env_fields, start_rows
from trainer.env.market import fields_of, market_arrays

UNDEF = -(2**31)
WINDOW = 4  # rows of the encoder in these tests


@dataclass
class Book:
    """Prices and sizes as lists of plain integers."""

    bid_px: list[list[int]]
    ask_px: list[list[int]]
    bid_sz: list[list[int]]
    ask_sz: list[list[int]]
    fill_row: list[int]


def random_market(
    seed: int, rows: int = 400, levels: int = 4, sessions: int = 3, depth: int = 5, move: float = 2.0, base: int = 5000
) -> Any:
    """What `market_arrays` reads. depth: largest displayed size; move: standard deviation of a row's jump, ticks."""
    rng = np.random.default_rng(seed)
    bid = base + np.cumsum(np.rint(rng.normal(0, move, rows)).astype(np.int64))
    ask = bid + rng.integers(1, 4, rows)
    gaps = np.cumsum(rng.integers(1, 3, (rows, levels)), axis=1)
    bid_px, ask_px = bid[:, None] - gaps + gaps[:, :1], ask[:, None] + gaps - gaps[:, :1]
    sizes = rng.integers(0, depth + 1, (2, rows, levels))  # 0: unknown
    known = rng.integers(1, levels + 1, (2, rows))  # levels that are there
    for px, sz, n in zip((bid_px, ask_px), sizes, known):
        gone = np.arange(levels) >= n[:, None]
        px[gone], sz[gone] = UNDEF, 0
    # Moments of one to four rows, 1 to 9 ms apart: with 5 ms of latency orders fill one to many rows later.
    moment = np.repeat(np.arange(rows), rng.integers(1, 5, rows))[:rows]
    ts = np.cumsum(rng.integers(1, 10, rows))[moment] * 1_000_000
    cuts = np.sort(rng.choice(np.arange(40, rows - 40), sessions - 1, replace=False)) if sessions > 1 else []
    return SimpleNamespace(
        ts=ts,
        features=rng.normal(size=(rows, 3)).astype(np.float32),
        bid_px=bid_px.astype(np.int32),
        ask_px=ask_px.astype(np.int32),
        bid_sz=sizes[0].astype(np.int32),
        ask_sz=sizes[1].astype(np.int32),
        session=np.searchsorted(cuts, np.arange(rows), side="right").astype(np.int32),
        signed_volume=np.zeros(rows, np.int32),
    )


def small_config(**env: Any) -> StudyConfig:
    return build_config(
        {
            "env": {"n_backtests": 64} | env,
            "net": {"window": WINDOW},
            "learn": {"batch": 64, "per_capacity": 1024, "seed": 5},
            "data": {"label_rows": 5},
        }
    )


def norm_of(market: Any) -> tuple[np.ndarray, np.ndarray]:
    n = market.features.shape[1]
    return np.zeros(n, np.float32), np.ones(n, np.float32)


def as_book(arrays: dict[str, np.ndarray]) -> Book:
    return Book(*(arrays[name].tolist() for name in ("bid_px", "ask_px", "bid_sz", "ask_sz", "fill_row")))


def build(
    market: Any, cfg: StudyConfig, B: int, training: bool = True, real: Any = np.float64, device: Any = None
) -> tuple[Environment, dict[str, np.ndarray], Store]:
    """An environment over the whole market: random starts, or lanes that wait for `reset_to`."""
    arrays = market_arrays(market, cfg, norm_of(market))
    n = len(market.ts)
    starts = start_rows(arrays["first"], arrays["last"], (0, n), WINDOW) if training else None
    fields = [*fields_of(arrays), *env_fields(cfg, B, starts, n - 1), Field("clock.step", (1,), "int64")]
    device = device or NumpyDevice()
    store = allocate(device, fields, real)
    return Environment(device, cfg, store), arrays, store
