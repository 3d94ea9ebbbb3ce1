"""B parallel backtests over one market: the arrays bound to the kernel that steps them all at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.env_step import KERNEL as ENV_STEP
from kernels.env_step import PARKED
from trainer.config import StudyConfig
from trainer.device.base import Device
from trainer.device.fields import Store
from trainer.env.fields import env_fields, start_rows

__all__ = ["Environment", "env_fields", "start_rows"]


class Environment:
    """Steps the backtests whose arrays lie under `prefix` in `store` (fields: `env_fields`).

    Autoreset is NEXT_STEP: after a step with done != 0 the arrays hold the final observation; the next step ignores its
    action, resets and sets valid to 0. The arrays are attributes: `env.reward`, `env.mask`, ...
    """

    def __init__(
        self,
        device: Device,
        cfg: StudyConfig,
        store: Store,
        prefix: str = "env",
        market: str = "market",
        clock: str = "clock.step",
    ):
        self.device = device
        scalars = {
            "seed": cfg.learn.seed,
            "lots_large": cfg.env.lots_large,
            "inventory_penalty": cfg.env.inventory_penalty,
            "message_cost": cfg.env.message_cost,
            "drawdown_scale": round(cfg.env.drawdown_ticks * 1000),
            "hold_scale": cfg.env.episode_len,
        }
        own = {"step": store[clock]} | scalars

        def value(name: str) -> Any:
            if name in own:
                return own[name]
            ours = f"{prefix}.{name}"
            return store[ours] if ours in store else store[f"{market}.{name}"]

        # The same objects in every launch: the device checks them once.
        self._values = [value(arg.name) for arg in ENV_STEP.args[1:]]
        self._last, self._n_rows = store[f"{market}.last"], len(store[f"{market}.last"])
        self._ns = store.ns(prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._ns, name)

    def step(self, action: Any) -> None:
        """Region code: one step of every lane. action int32 [B]."""
        self.device.launch(ENV_STEP, action, *self._values)

    def reset_all(self) -> None:
        """Region code: ends every episode and starts the next one."""
        self.device.copy(self.done, self.ended)
        self.step(self.hold)

    def reset_to(self, rows: Any, end_rows: Any) -> None:
        """Host code: starts lane b on rows[b]; it runs to end_rows[b] or its session's end, then stands there.

        A row of -1 parks the lane at once. Raises ValueError for a start without a row after it.
        """
        rows, end_rows = np.asarray(rows, np.int32), np.asarray(end_rows, np.int32)
        used = rows >= 0
        ends = np.minimum(self.device.to_host(self._last)[np.clip(rows, 0, self._n_rows - 1)], end_rows)
        if (used & (rows >= ends)).any():
            lane = int(np.flatnonzero(used & (rows >= ends))[0])
            raise ValueError(f"lane {lane}: start row {rows[lane]} has no row after it (its pass ends on {ends[lane]})")
        for state in ("position", "target", "hold_rows", "cash", "equity", "peak", "entry_cash"):
            self.device.fill(getattr(self, state), 0)  # a lane that is parked is not reset by the kernel
        self.device.fill(self.start_row, np.where(used, rows, np.int32(PARKED)))
        self.device.fill(self.limit_row, end_rows)
        self.reset_all()
