"""A sign of life in a pod: a JSON line on stdout at least every 30 s, however slow the steps are.

Printed by a thread, so that also a long validation, compilation or evaluation is seen to be alive; `step_age_s` tells a
slow run from one that hangs. Metric lines count as signs of life too. Outside of a pod nothing is printed.
"""

from __future__ import annotations

import json
import os
import threading
import time

from trainer.learn.metrics import write_progress

EVERY_S = 30.0


class Heartbeat:
    """`with Heartbeat(fold, total) as heartbeat:`; the loop says `at(step, attempt)`, the stage sets `phase`."""

    def __init__(self, fold: int, total: int, every_s: float = EVERY_S):
        self.fold, self.total, self.every_s = fold, total, every_s
        self.step, self.attempt, self.phase = 0, 0, "starting"
        self._reached = self._spoken = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeat:
        if os.environ.get("FOXHUNT_POD"):
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def at(self, step: int, attempt: int) -> None:
        """A step boundary was reached."""
        self.step, self.attempt, self._reached = step, attempt, time.monotonic()

    def spoke(self) -> None:
        """Another line has just been printed."""
        self._spoken = time.monotonic()

    def _beat(self) -> None:
        while not self._stop.wait(max(self._spoken + self.every_s - time.monotonic(), 0.0)):
            if time.monotonic() - self._spoken >= self.every_s:
                print(self._line(), flush=True)
                write_progress(self.step, self.total)
                self.spoke()

    def _line(self) -> str:
        line = {
            "fold": self.fold,
            "heartbeat": self.phase,
            "step": self.step,
            "total": self.total,
            "attempt": self.attempt,
            "time": round(time.time(), 3),
            "step_age_s": round(time.monotonic() - self._reached, 1),
        }
        return json.dumps(line)
