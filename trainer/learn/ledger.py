"""The attempt ledger `attempts.jsonl`: one line at each start and end of a process that trains a fold.

The workflow passes how the last attempt ended (FOXHUNT_LAST_EXIT_CODE, _STATUS, _MESSAGE), so a death that could write
nothing itself is classified by the next attempt. Interruptions are free; three unexplained deaths in a row without a
new checkpoint are a crash loop.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from trainer.errors import CrashLoop
from trainer.learn.files import append_json, read_json_lines

log = structlog.get_logger()

LEDGER = "attempts.jsonl"
CRASH_LOOP = 3
_FREE_WORDS = ("evict", "preempt", "shutdown", "deleted", "deadline", "node", "terminat", "oomkilled")


@dataclass(frozen=True)
class Attempt:
    """One start with its end, as read back."""

    attempt: int
    started: float
    resumed_step: int
    ended: float | None
    last_step: int | None
    why: str
    exit_code: int | None
    pod: str
    node: str

    @property
    def explained(self) -> bool:
        """True when the end was an interruption, a finish, or a crash loop already reported."""
        return self.why in ("done", "interrupted", "out of memory", "crash loop", "usage error", "running")


def read_attempts(folder: Path) -> list[Attempt]:
    starts: dict[int, dict[str, Any]] = {}
    ends: dict[int, dict[str, Any]] = {}
    for line in read_json_lines(folder / LEDGER):
        (starts if line.get("event") == "start" else ends)[int(line["attempt"])] = line
    return [_attempt(starts[n], ends.get(n)) for n in sorted(starts)]


def _attempt(start: dict[str, Any], end: dict[str, Any] | None) -> Attempt:
    end = end or {}
    return Attempt(
        attempt=int(start["attempt"]),
        started=float(start["time"]),
        resumed_step=int(start["resumed_step"]),
        ended=end.get("time"),
        last_step=end.get("last_step"),
        why=str(end.get("why", "running")),
        exit_code=end.get("exit_code"),
        pod=str(start.get("pod", "")),
        node=str(start.get("node", "")),
    )


def classify(exit_code: int | None, status: str, message: str) -> str:
    """Why an attempt that wrote no end line ended, from what the workflow knows of it."""
    if exit_code == 77:
        return "out of memory"
    if exit_code == 75 or status == "Error" or any(word in message.lower() for word in _FREE_WORDS):
        return "interrupted"
    return "killed" if exit_code in (None, 0, -1, 137, 143) else "crashed"


class Ledger:
    """Opened at the start of an attempt, closed by `end`."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / LEDGER
        attempts = read_attempts(folder)
        self._close_the_dead(attempts)
        self.attempts = read_attempts(folder)
        self.attempt = self.attempts[-1].attempt + 1 if self.attempts else 0

    def start(self, resumed_step: int) -> None:
        """Writes the start line. Raises CrashLoop after three unexplained deaths in a row at this very step."""
        deaths = 0
        for past in reversed(self.attempts):
            if past.explained or past.resumed_step != resumed_step:
                break
            deaths += 1
        self._append("start", resumed_step=resumed_step, pid=os.getpid())
        if deaths >= CRASH_LOOP:
            self.end(resumed_step, "crash loop", CrashLoop.exit_code)
            raise CrashLoop(
                f"fold folder {self.folder}: {deaths} attempts in a row died after step {resumed_step}, none saved\n"
                f"read {self.folder}/log-*.txt for the cause; running the same command again tries once more"
            )

    def end(self, last_step: int, why: str, exit_code: int) -> None:
        """Never raises for a disk: the news is why the run ended, and the next attempt closes this one."""
        try:
            self._append("end", last_step=last_step, why=why, exit_code=exit_code)
        except OSError as error:
            log.error("end of the attempt not recorded", path=str(self.path), why=error.strerror)

    def _append(self, event: str, **values: Any) -> None:
        line = {"event": event, "attempt": self.attempt, "time": time.time(), **values}
        line |= {"pod": os.environ.get("FOXHUNT_POD", ""), "node": os.environ.get("FOXHUNT_NODE", socket.gethostname())}
        append_json(self.path, line)

    def _close_the_dead(self, attempts: list[Attempt]) -> None:
        """The lease is ours, so an attempt without an end is dead; the last one's cause may come from the workflow."""
        for past in attempts:
            if past.ended is not None:
                continue
            code, status, message = None, "", ""
            if past is attempts[-1]:
                text = os.environ.get("FOXHUNT_LAST_EXIT_CODE", "")
                code = int(text) if text.lstrip("-").isdigit() else None
                status = os.environ.get("FOXHUNT_LAST_STATUS", "")
                message = os.environ.get("FOXHUNT_LAST_MESSAGE", "")
            append_json(
                self.path,
                {
                    "event": "end",
                    "attempt": past.attempt,
                    "time": time.time(),
                    "last_step": None,
                    "why": classify(code, status, message),
                    "exit_code": code,
                    "written_by": "next attempt",
                },
            )
