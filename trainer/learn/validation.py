"""Validation beside the training: a greedy pass on a snapshot of the weights, whose result comes at a fixed later step.

The pass has a stream of its own and is handed to it in small pieces, a few a step, so training never waits for it. Fast
or slow, its result is taken at the step that was fixed when it began; weights and steps of a pass under way are
checkpointed, so a resumed run walks the same pass again and takes the same result at the same step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.device import Device, Field
from trainer.learn.evaluator import Evaluator, summary

LAG = 100  # steps from the snapshot to the result
NONE = 0  # in `val.begun`: no pass is under way; before step 1 there is nothing to validate
STREAM = "validation"


def validation_fields(size: int) -> list[Field]:
    """State of validation for weights [size]."""
    return [
        Field("val.param", (size,), doc="weights under validation"),
        Field("val.begun", (1,), "int64", init=NONE, doc="step of their snapshot"),
        Field("val.due", (1,), "int64", doc="step at which the result is taken"),
        Field("best.param", (size,), doc="weights of the best validation pass"),
        Field("best.score", (1,), "float64", init=-np.inf, doc="its net ticks per 1,000 decisions"),
    ]


class Validation:
    """`begin` at a step boundary, then `after_step` at each later one. Without an evaluator there is nothing to do."""

    def __init__(self, device: Device, store: Any, evaluator: Evaluator | None):
        self.device, self.store, self.evaluator = device, store, evaluator
        self.begun, self.due, self.best = NONE, NONE, -np.inf

    def sync(self) -> None:
        """After a resume: takes over what the checkpoint says and starts a pass that was under way again."""
        names = ("val.begun", "val.due", "best.score")
        begun, due, best = (self.device.to_host(self.store[name])[0] for name in names)
        self.begun, self.due, self.best = int(begun), int(due), float(best)
        if self.begun != NONE:
            self._start()

    def begin(self, step: int, lag: int) -> None:
        """Takes the weights as they are after `step`; the result is due after step + `lag`. One pass at a time."""
        if self.evaluator is None or self.begun != NONE:
            return
        self.device.copy(self.store["val.param"], self.store["opt.param"])
        self._mark(step, step + lag)
        self._start()

    def after_step(self, step: int, last: bool = False) -> dict[str, float]:
        """Goes on with the pass. When it is due, or at the `last` step of a run: its figures, and the best weights are
        seen to; else nothing."""
        if self.evaluator is None or self.begun == NONE:
            return {}
        arriving = last or step >= self.due
        # All is under way after half of the steps: then a result is there when it is due.
        share = 1.0 if arriving else min(1.0, (step - self.begun) / max((self.due - self.begun) // 2, 1))
        with self.device.aside(STREAM):
            self.evaluator.advance(share)
        return self._arrive() if arriving else {}

    def _start(self) -> None:
        assert self.evaluator is not None
        with self.device.aside(STREAM, after=True):
            self.evaluator.begin(self.store["val.param"])

    def _mark(self, begun: int, due: int) -> None:
        self.begun, self.due = begun, due
        self.device.fill(self.store["val.begun"], begun)
        self.device.fill(self.store["val.due"], due)

    def _arrive(self) -> dict[str, float]:
        assert self.evaluator is not None
        figures = summary(self.evaluator.log()) | {"val_step": float(self.begun)}
        if figures["val_net_per_1k"] > self.best:
            self.best = figures["val_net_per_1k"]
            self.device.fill(self.store["best.score"], self.best)
            self.device.copy(self.store["best.param"], self.store["val.param"])
        self._mark(NONE, NONE)
        return figures
