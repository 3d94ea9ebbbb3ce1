"""What the local runner knows of each pod and each task; small enough to be written down after every change."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUCCEEDED, FAILED, ERROR = "Succeeded", "Failed", "Error"
SKIPPED, OMITTED, RUNNING, PENDING = "Skipped", "Omitted", "Running", "Pending"
_RESULT_OF_PHASE = {"Succeeded": SUCCEEDED, "Failed": FAILED, "Errored": ERROR, "Skipped": SKIPPED, "Omitted": OMITTED}


@dataclass
class Attempt:
    """One process. `status` is Argo's word for its end: Failed, or Error when it could not be started."""

    log: str
    started: float
    ended: float | None = None
    exit_code: int | None = None
    status: str = ""
    message: str = ""


@dataclass
class Node:
    """One pod, over all its attempts."""

    name: str
    task: str
    label: str
    phase: str = PENDING
    message: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int | None:
        return self.attempts[-1].exit_code if self.attempts else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> Node:
        attempts = [Attempt(**attempt) for attempt in tree.get("attempts", [])]
        return cls(**{**tree, "attempts": attempts})


@dataclass
class Result:
    """How a task ended, with what its readers may ask for. `children` is None but for a fan-out."""

    phase: str
    outputs: dict[str, str] = field(default_factory=dict)
    children: list[Result] | None = None

    def answers(self, what: str) -> bool:
        """Whether `task.what` of a `depends` expression holds."""
        if what == "AnySucceeded":
            return any(child.phase == SUCCEEDED for child in self.children or [])
        if what == "AllFailed":
            return bool(self.children) and all(child.phase == FAILED for child in self.children or [])
        return self.phase == _RESULT_OF_PHASE.get(what, "")  # nothing is ever Daemoned here


def group(children: list[Result]) -> Result:
    """A fan-out: Skipped when empty, else the worst of its children. Outputs hold the children that succeeded."""
    import json

    if not children:
        return Result(SKIPPED, children=[])
    phases = [child.phase for child in children]
    phase = next((bad for bad in (ERROR, FAILED, OMITTED) if bad in phases), SUCCEEDED)
    good = [child.outputs for child in children if child.phase == SUCCEEDED]
    names = {name for outputs in good for name in outputs}
    outputs = {name: json.dumps([o.get(name, "") for o in good]) for name in sorted(names)}
    return Result(phase, outputs, children)


def read_progress(log: str) -> tuple[int, int] | None:
    """`step/total` that the process wrote to its ARGO_PROGRESS_FILE, beside its log."""
    try:
        step, _, total = progress_file(log).read_text().strip().partition("/")
        return int(step), int(total)
    except (OSError, ValueError):
        return None


def progress_file(log: str) -> Path:
    return Path(log).with_suffix(".progress")


def seconds_since(start: float) -> float:
    return time.time() - start
