"""Rollouts: two buffers of T rows of all backtests, one being filled while the other is learnt from.

As region code: `stage_seen` before the environment moves, `serve` in the learn branch, `write` after the join.
`Boundary` is the host's side: it counts steps and says when the region with `finish` is due.
"""

from __future__ import annotations

from typing import Any

from kernels import gae, rollout_end, rollout_serve, rollout_write
from kernels import stage_seen as seen
from kernels.heads import N_ACTIONS
from kernels.rollout_write import STAGED
from trainer.config import N_PRIVATE, LearnConfig, StudyConfig
from trainer.device import Device, Field

TM = 128  # longest rollout
_NAMES = tuple(name for name, *_ in STAGED)
_KEPT = ("row", "mask")  # what the environment's step overwrites, and no input of the network holds
# Where the rest of a step's values lie until the next step begins.
_FROM_INPUTS = ("private", "h_prev")
_FROM_ACTING = ("value", "action", "log_mu")
_FROM_ENV = ("reward", "valid", "done")


def dims(cfg: StudyConfig, tail: str) -> tuple[int, ...]:
    """Sizes of trailing dimensions such as "P" or "", from the letters of the kernels' tables."""
    sizes = {"P": N_PRIVATE, "H": cfg.net.hidden, "A": N_ACTIONS, "n": cfg.learn.n_step}
    return tuple(sizes[letter] for letter in tail.split(",") if letter)


def staging_fields(cfg: StudyConfig) -> list[Field]:
    """What `stage_seen` keeps of every backtest [B, ...] beside the network's inputs, written away after the join."""
    b, kept = cfg.env.n_backtests, [of for of in STAGED if of[0] in _KEPT]
    return [Field(f"staging.{n}", (b, *dims(cfg, tail)), dtype, "scratch", doc=doc) for n, dtype, tail, doc in kept]


def rollout_fields(cfg: StudyConfig) -> list[Field]:
    b, m = cfg.env.n_backtests, cfg.learn.batch
    lead = (2, TM, b)
    return [
        *(Field(f"rollout.{n}", (*lead, *dims(cfg, tail)), dtype, doc=doc) for n, dtype, tail, doc in STAGED),
        Field("rollout.advantage", lead, doc="normalised over the rollout"),
        Field("rollout.returns", lead, doc="value target, scaled return"),
        Field("rollout.bootstrap", (b,), doc="value after the last row of the finished rollout"),
        Field("rollout.length", (2,), "int32", init=cfg.learn.rollout_len, doc="T of each buffer"),
        Field("rollout.active", (1,), "int64", doc="buffer being filled; the other one is served"),
        Field("rollout.filled", (1,), "int64", doc="rows in it"),
        Field("rollout.epoch", (1,), "int64", doc="number of the permutation in which rows are served"),
        Field("rollout.position", (1,), "int64", doc="batches served of it"),
        Field("served.index", (m,), "int32", "scratch", doc="flat index into [2, TM, B]"),
    ]


def stage_seen(device: Device, store: Any, inputs: Any) -> None:
    """Before the environment moves: its row and mask -> staging; private state and recurrent state -> `inputs` of the
    network that acts."""
    env, s = store.ns("env"), store.ns("staging")
    device.launch(
        seen.KERNEL,
        *(env.row, env.mask, env.private, store["policy.h"]),
        *(s.row, s.mask, inputs.private, inputs.h_prev),
    )


def step_values(store: Any, inputs: Any) -> dict[str, Any]:
    """The arrays of a step by their names in STAGED: what was seen, as `stage_seen` left it, what was done, and what
    came of it. They hold from the environment's step to the next `stage_seen`."""
    sources = {"staging": _KEPT, "acting": _FROM_ACTING, "env": _FROM_ENV}
    found = {name: store[f"{prefix}.{name}"] for prefix, names in sources.items() for name in names}
    return found | {name: inputs[name] for name in _FROM_INPUTS}


def write(device: Device, store: Any, inputs: Any) -> None:
    """The step -> the next row of the active buffer, closing the rollout before it when that was full."""
    s, r = step_values(store, inputs), store.ns("rollout")
    device.launch(
        rollout_write.KERNEL,
        *(s[name] for name in _NAMES),
        *(r.length, r.active, r.filled, r.bootstrap),
        *(r[name] for name in _NAMES),
    )


def finish(device: Device, store: Any, cfg: LearnConfig) -> None:
    """Region code of a boundary: advantages of the finished rollout, a new epoch, the next T."""
    r, isv = store.ns("rollout"), store["isv"]
    device.launch(
        gae.KERNEL,
        *(isv, r.reward, r.value, r.valid, r.done, r.bootstrap, r.length, r.active, cfg.gae_lambda),
        *(r.advantage, r.returns),
    )
    device.launch(rollout_end.KERNEL, isv, r.active, r.length, r.epoch, r.position)


def serve(device: Device, store: Any, cfg: LearnConfig) -> None:
    """The next M rows of the finished rollout -> served.index."""
    r = store.ns("rollout")
    device.launch(
        rollout_serve.KERNEL,
        *(r.active, r.length, r.epoch, r.position, r.valid, cfg.seed, store["served.index"]),
    )


class Boundary:
    """The host's count of rows: `step()` after each step's region says whether the boundary region is due.

    `passed` after each run of that region, which alone sets the next T: it is read one step later, when the device has
    long gone on. `sync` reads everything, and waits: before the first step and after a resume.
    """

    def __init__(self, device: Device, store: Any):
        self.device, self.rollout = device, store.ns("rollout")
        self.lengths = device.readback({"length": self.rollout.length, "active": self.rollout.active}, slots=1)
        self.sync()

    def sync(self) -> None:
        self.filled = int(self.device.to_host(self.rollout.filled)[0])
        # Epoch 0 is the time before the first rollout was finished: nothing can be served yet.
        self.finished = int(self.device.to_host(self.rollout.epoch)[0]) > 0
        self.lengths.push()
        self._read_length()

    def step(self) -> bool:
        """True when the write just done was row T: it closed the rollout and began the next one with its row."""
        if self.unread:
            self._read_length()
        self.filled += 1
        return self.filled > self.length

    def passed(self) -> None:
        self.filled, self.finished, self.unread = 1, True, True
        self.lengths.push()

    def _read_length(self) -> None:
        found = self.lengths.pull()
        assert found is not None
        self.length, self.unread = int(found["length"][int(found["active"][0])]), False
