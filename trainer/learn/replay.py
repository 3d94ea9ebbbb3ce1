"""Prioritised replay of n-step transitions, as region code.

A learning step: `sample` and `gather` in its branch; after the join `update`, `write`, `refresh`, in this order, so
that a slot that was learnt from and is overwritten in the same step ends up new. A collect-only step: `write`,
`refresh`.
"""

from __future__ import annotations

from typing import Any

from kernels import batch_gather, nstep_write, per_mass, per_sample, per_update
from kernels.nstep_write import NEVER, TRANSITION, UNUSED
from kernels.rollout_write import STAGED
from trainer.config import LearnConfig, StudyConfig
from trainer.device import Device, Field
from trainer.learn.rollout import dims, step_values

WARMUP_BATCHES = 10  # learning starts when replay holds this many batches
_RING = tuple((name, dtype, tail, doc) for name, dtype, tail, doc in STAGED if name not in UNUSED)
_NAMES = tuple(name for name, *_ in TRANSITION)
_SAMPLE = ("action", "rewards", "n_used", "terminal", "next_row", "next_mask")
_SERVED = ("action", "log_mu", "mask", "valid", "value", "advantage", "returns")


def replay_fields(cfg: StudyConfig) -> list[Field]:
    b, c, ring = cfg.env.n_backtests, cfg.learn.per_capacity, cfg.learn.n_step + 1
    return [
        *(Field(f"ring.{n}", (ring, b, *dims(cfg, tail)), dtype, doc=doc) for n, dtype, tail, doc in _RING),
        Field("ring.pushed", (1,), "int64", doc="steps put into the ring"),
        *(Field(f"replay.{n}", (c, *dims(cfg, tail)), dtype, doc=doc) for n, dtype, tail, doc in TRANSITION),
        Field("replay.priority", (c,), init=NEVER, doc="raw priority; negative: never drawn"),
        Field("replay.max_priority", (1,), init=1.0, doc="largest so far: that of new transitions"),
        Field("replay.mass", (c,), "int32", doc="fixed-point (priority + 1e-6)^alpha"),
        Field("replay.block", (per_mass.n_blocks(c), 3), "int64", doc="sum, sum of squares, count of 256 masses"),
    ]


def batch_fields(cfg: StudyConfig) -> list[Field]:
    """What a batch needs beyond the network's own inputs; names as the losses want them."""
    m, kinds = cfg.learn.batch, {n: (dtype, tail, doc) for n, dtype, tail, doc in (*TRANSITION, *STAGED)}
    real = ("real", "", "")

    def fields(prefix: str, names: tuple[str, ...]) -> list[Field]:
        found = ((n, *kinds.get(n, real)) for n in names)
        return [
            Field(f"{prefix}.{n}", (m, *dims(cfg, tail)), dtype, "scratch", doc=doc) for n, dtype, tail, doc in found
        ]

    return [
        Field("batch.row", (2 * m,), "int32", "scratch", doc="market rows: M of replay, M of the rollout"),
        Field("sample.slots", (m,), "int32", "scratch", doc="replay slots"),
        Field("sample.is_weight", (m,), kind="scratch", doc="importance weights, largest 1"),
        Field("sample.priority", (m,), kind="scratch", doc="cross entropy of each, for `update`"),
        *fields("sample", _SAMPLE),
        *fields("served", _SERVED),
        Field("served.aux_label", (m,), "int8", "scratch", doc="0 down, 1 flat, 2 up, -1 unknown"),
    ]


def sample(device: Device, store: Any, cfg: LearnConfig) -> None:
    """Draws M slots -> sample.slots, sample.is_weight."""
    r = store.ns("replay")
    device.launch(
        per_sample.KERNEL,
        *(store["isv"], store["clock.step"], r.mass, r.block, cfg.seed, cfg.per_beta),
        *(store["sample.slots"], store["sample.is_weight"]),
    )


def gather(device: Device, store: Any, joint: Any, following: Any) -> None:
    """Slots and served rows -> the batch. `joint` [2M] and `following` [M] (at s') have the inputs private, h_prev."""
    replay, roll, sampled, served = store.ns("replay"), store.ns("rollout"), store.ns("sample"), store.ns("served")
    device.launch(
        batch_gather.KERNEL,
        *(sampled.slots, served.index),
        *(replay[name] for name in _NAMES),
        *(roll.row, roll.private, roll.h_prev),
        *(roll[name] for name in _SERVED),
        store["market.aux_label"],
        *(store["batch.row"], joint.private, joint.h_prev),
        *(sampled.action, sampled.rewards, sampled.n_used, sampled.terminal),
        *(sampled.next_row, following.private, following.h_prev, sampled.next_mask),
        *(served[name] for name in _SERVED),
        served.aux_label,
    )


def update(device: Device, store: Any) -> None:
    """Raw priorities of the slots just learnt from, out of sample.priority."""
    r, s = store.ns("replay"), store.ns("sample")
    device.launch(per_update.KERNEL, s.slots, s.priority, r.priority, r.max_priority)


def write(device: Device, store: Any, inputs: Any) -> None:
    """The step -> ring; the transition that is complete now -> replay. `inputs`: see `rollout.stage_seen`."""
    step, ring, r = step_values(store, inputs), store.ns("ring"), store.ns("replay")
    device.launch(
        nstep_write.KERNEL,
        *(step[name] for name, *_ in _RING),
        *(ring[name] for name, *_ in _RING),
        *(ring.pushed, r.max_priority),
        *(r[name] for name in _NAMES),
        r.priority,
    )


def refresh(device: Device, store: Any) -> None:
    """Masses and block sums for the next step's draw."""
    r = store.ns("replay")
    device.launch(per_mass.KERNEL, store["isv"], r.priority, r.mass, r.block)


def warm_steps(cfg: StudyConfig) -> int:
    """Steps after which replay holds WARMUP_BATCHES batches."""
    return cfg.learn.n_step + -(-WARMUP_BATCHES * cfg.learn.batch // cfg.env.n_backtests)
