"""The ISV bus, the clock and the controllers of a run: their start values, their arrays, and their region code."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import controllers as controllers_kernel
from kernels import signals as signals_kernel
from kernels.controllers import GAMMA, TABLE, bounds_of
from kernels.isv import GROUPS, OUTPUTS, SIZE, SLOTS
from trainer.config import StudyConfig
from trainer.device import Device, Field


def start_values(cfg: StudyConfig) -> dict[str, float]:
    """The twelve outputs as the profile sets them."""
    named = {name: float(getattr(cfg.learn, name)) for name in OUTPUTS if not name.startswith("lr_")}
    return named | {f"lr_{group}": cfg.learn.lr for group in GROUPS}


def isv_init(cfg: StudyConfig) -> np.ndarray:
    """The bus before the first step, float32 [585]: outputs at their start values, signals absent (0)."""
    bus = np.zeros(SIZE, np.float32)
    for name, value in start_values(cfg).items():
        bus[SLOTS[name]] = value
    bus[SLOTS["per_beta"]] = cfg.learn.per_beta
    bus[SLOTS["lr_factor"]] = 1.0
    return bus


def frozen_mask(cfg: StudyConfig) -> np.ndarray:
    """uint8 [12], 1 where `learn.frozen` names the controller."""
    return np.array([name in cfg.learn.frozen or "all" in cfg.learn.frozen for name in OUTPUTS], np.uint8)


def clamps(cfg: StudyConfig) -> np.ndarray:
    """[12, 2] lowest and highest output of each controller."""
    start = np.array([start_values(cfg)[c.output] for c in TABLE])
    start[GAMMA] = 1 / (1 - start[GAMMA])
    return bounds_of(start)


def bus_fields(cfg: StudyConfig) -> list[Field]:
    n = len(TABLE)
    return [
        Field("isv", (SIZE,), init=isv_init(cfg), doc="the bus; slots in kernels/isv.py"),
        Field("clock.step", (1,), "int64", doc="steps done; the random counter of acting, resets and replay"),
        Field("controllers.frozen", (n,), "uint8", "data", frozen_mask(cfg)),
        Field("controllers.bounds", (n, 2), kind="data", init=clamps(cfg)),
        Field("signals.sums", (signals_kernel.N_SUMS,), doc="decayed sums, see kernels/signals.py"),
        Field("signals.trades", (1,), "int64", doc="closed round trips"),
    ]


def control(device: Device, store: Any) -> None:
    """Region code of a learning step, after the optimiser and before `measure`."""
    ns = store.ns("controllers")
    device.launch(controllers_kernel.KERNEL, store["isv"], store["clock.step"], ns.frozen, ns.bounds)


def measure(device: Device, store: Any, env: str = "env") -> None:
    """Region code that ends every step, learning or not: measures the environment's step and advances the clock."""
    e, s = store.ns(env), store.ns("signals")
    device.launch(
        signals_kernel.KERNEL,
        *(e.valid, e.reward, e.ordered, e.closed, e.closed_pnl, e.closed_rows),
        *(s.sums, s.trades, store["clock.step"], store["isv"]),
    )
