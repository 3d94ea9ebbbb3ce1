"""The optimiser: one gradient norm, one fused Adam with Polyak target, over the parameter arenas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels import adam_arena, grad_norm
from kernels.grad_norm import PARTS
from kernels.isv import GROUPS
from trainer.config import LearnConfig
from trainer.device import Device, Field
from trainer.device.fields import REAL

Segments = Sequence[tuple[int, int, str]]


def optimizer_fields(init: np.ndarray, segments: Segments, prefix: str = "opt") -> list[Field]:
    """The arenas of `init` [S] (initial parameters; the target starts as a full copy) and what the optimiser keeps.

    `segments`: (start, stop, learning-rate group of kernels.isv.GROUPS), as in `ParamLayout.segments`.
    """
    size = init.size
    starts, stops, groups = _segment_table(segments, size)

    def field(name: str, shape: tuple[int, ...], dtype: str, kind: str, initial: Any, doc: str) -> Field:
        return Field(f"{prefix}.{name}", shape, dtype, kind, initial, doc)

    return [
        field("param", (size,), REAL, "state", init, "online network"),
        field("target", (size,), REAL, "state", init, "target network"),
        field("m", (size,), REAL, "state", 0, "Adam's first moment"),
        field("v", (size,), REAL, "state", 0, "Adam's second moment"),
        field("count", (1,), "int64", "state", 0, "updates done"),
        field("bad", (1,), "int32", "state", 0, "1: a gradient was not finite and its update was left out"),
        field("grad", (size,), REAL, "scratch", 0, "gradient"),
        field("norm", (1,), REAL, "scratch", 0, "its global norm"),
        field("norm_parts", (PARTS,), REAL, "scratch", 0, "sums of the first level"),
        field("parts", (len(starts), 3, PARTS), REAL, "scratch", 0, "sums of the first level, by segment"),
        field("start", (len(starts),), "int32", "data", starts, "segments: first float"),
        field("stop", (len(starts),), "int32", "data", stops, "segments: one past the last"),
        field("group", (len(starts),), "int32", "data", groups, "segments: learning-rate group"),
    ]


def optimizer_step(device: Device, cfg: LearnConfig, lr_decay_steps: int, opt: Any, isv: Any) -> None:
    """Region code: `opt.grad` -> new `opt.param` and `opt.target`, or `opt.bad` when the gradient is not finite.

    `lr_decay_steps`: `StudyConfig.lr_decay_steps`.
    """
    device.launch(grad_norm.KERNEL, opt.grad, opt.norm_parts, opt.norm, isv)
    device.launch(
        adam_arena.KERNEL,
        *(opt.param, opt.grad, opt.m, opt.v, opt.target, opt.start, opt.stop, opt.group),
        *(opt.norm, opt.count, opt.bad, opt.parts, isv),
        *(cfg.adam_b1, cfg.adam_b2, cfg.adam_eps, cfg.grad_clip, lr_decay_steps),
    )


def _segment_table(segments: Segments, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32 columns (start, stop, group). Segments lie in order, without overlap, within the arena."""
    assert segments, "no segments"
    edge = 0
    for start, stop, group in segments:
        assert edge <= start < stop <= size, f"segment {start}:{stop} of {group} in an arena of {size}, after {edge}"
        assert group in GROUPS, group
        edge = stop
    starts, stops, groups = zip(*((a, b, GROUPS.index(g)) for a, b, g in segments))
    return np.array(starts, np.int32), np.array(stops, np.int32), np.array(groups, np.int32)
