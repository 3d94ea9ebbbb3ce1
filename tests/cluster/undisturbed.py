"""The study that nothing disturbs: every other test of the session compares its end state with it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.live import Live, eventually

FOLDS = range(3)


@dataclass
class Undisturbed:
    run_id: str
    name: str
    phase: str
    three_running_s: float
    total_s: float
    folds: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # fold -> (state hash, result)
    pods: list[dict[str, Any]] = field(default_factory=list)


def run_undisturbed(live: Live, run: str = "undisturbed") -> Undisturbed:
    """Submits, sees three pods run at the same time, waits for the end."""
    started = time.monotonic()
    name = live.submit(run)
    live.keep(name)
    seen: list[dict[str, Any]] = []

    def three_run() -> bool:
        seen[:] = [p for p in live.pods(name) if p["status"]["phase"] == "Running"]
        return len(seen) == len(FOLDS)

    eventually("three training pods run", three_run, 120, lambda: live.explain(name))
    running = time.monotonic() - started
    phase = live.wait(name)
    total = time.monotonic() - started
    found = Undisturbed(live.run_id(run), name, phase, round(running, 1), round(total, 1), pods=seen)
    if phase == "Succeeded":
        found.folds = {fold: live.done(run, fold) for fold in FOLDS}
    return found
