"""A line of a study's logs with what it belongs to, as text for people or as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass

LINE, NOTE, HEADER = "line", "note", "header"
NAME_WIDTH = 12  # of a task's name before its lines; a longer one moves them


@dataclass(frozen=True)
class LogLine:
    """`attempt` counts from 1. A note is our own word on a log, a header begins an attempt."""

    task: str  # such as gate or train-0
    attempt: int
    text: str
    kind: str = LINE

    def shown(self, width: int) -> str:
        """For people; `width`: room for the task's name before it, 0 for a log of one task."""
        around = {LINE: "{}", NOTE: "({})", HEADER: "--- {} ---"}[self.kind]
        return (f"{self.task:<{width}} " if width else "") + around.format(self.text)

    def to_json(self) -> str:
        name, _, number = self.task.rpartition("-")
        fold = int(number) if name == "train" and number.isdecimal() else None
        key = LINE if self.kind == LINE else NOTE
        return json.dumps({"task": self.task, "fold": fold, "attempt": self.attempt, key: self.text})
