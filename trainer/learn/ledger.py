"""The attempt ledger `attempts.jsonl`: one line at each start and end of a process that trains a fold.

The workflow passes how the last attempt ended (FOXHUNT_LAST_EXIT_CODE, _STATUS, _MESSAGE), so a death that could write
nothing itself is classified by the next attempt. Interruptions are free; three other deaths in a row without a new
checkpoint are a crash loop.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import CrashLoop
from trainer.files import append_json, read_json_lines

LEDGER = "attempts.jsonl"
CRASH_LOOP = 3
OUT_OF_MEMORY = "out of memory"
_UNKNOWN_CODES = (None, 0, -1)  # the workflow's tags say "0" for an unknown code, its expressions "-1"
_ASKED_TO_STOP = (75, 143)  # 143: SIGTERM before the trainer could answer it
_FREE_WORDS = ("evict", "preempt", "shutdown", "deleted", "deadline", "node", "terminat")


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
    memory_limit: int | None = None  # bytes

    @property
    def explained(self) -> bool:
        """True when the end was an interruption, a finish, or a crash loop already reported."""
        return self.why in ("done", "interrupted", "crash loop", "usage error", "running")


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
        memory_limit=start.get("memory_limit"),
    )


def classify(exit_code: int | None, status: str, message: str) -> str:
    """Why an attempt that wrote no end line ended, from what the workflow knows of it.

    A known exit code says more than words: the message of a crash may hold any. Without one, the pod was deleted or
    evicted, its node was lost, or the message tells.
    """
    text = message.lower()
    if exit_code == 77 or "oomkilled" in text:
        return OUT_OF_MEMORY
    if exit_code in _ASKED_TO_STOP or status == "Error":
        return "interrupted"
    if exit_code in (*_UNKNOWN_CODES, 137):  # any kill leaves 137: the message may know more
        return "interrupted" if any(word in text for word in _FREE_WORDS) else "killed"
    return "crashed"


def last_retry() -> tuple[int | None, str, str]:
    """(exit code or None, status, message) of the attempt before this one, as the workflow knows them."""
    text = os.environ.get("FOXHUNT_LAST_EXIT_CODE", "")
    code = int(text) if text.lstrip("-").isdigit() else None
    status, message = (os.environ.get(f"FOXHUNT_LAST_{name}", "") for name in ("STATUS", "MESSAGE"))
    return None if code in _UNKNOWN_CODES else code, status, message


class Ledger:
    """Opened at the start of an attempt, closed by `end`."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / LEDGER
        attempts = read_attempts(folder)
        self._close_the_dead(attempts)
        self.attempts = read_attempts(folder)
        self.attempt = self.attempts[-1].attempt + 1 if self.attempts else 0

    @property
    def memory_too_small(self) -> int | None:
        """The largest limit, in bytes, under which an attempt ran out of memory."""
        return max((a.memory_limit for a in self.attempts if a.why == OUT_OF_MEMORY and a.memory_limit), default=None)

    def start(self, resumed_step: int, memory_limit: int | None = None) -> None:
        """Writes the start line. Raises CrashLoop after three unexplained deaths in a row at this very step."""
        deaths = 0
        for past in reversed(self.attempts):
            if past.explained or past.resumed_step != resumed_step:
                break
            deaths += 1
        self._append("start", resumed_step=resumed_step, pid=os.getpid(), memory_limit=memory_limit)
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
            import structlog  # the results stage reads ledgers too, and imports nothing heavy

            structlog.get_logger().error("end of the attempt not recorded", path=str(self.path), why=error.strerror)

    def _append(self, event: str, **values: Any) -> None:
        line = {"event": event, "attempt": self.attempt, "time": time.time(), **values}
        line |= {"pod": os.environ.get("FOXHUNT_POD", ""), "node": os.environ.get("FOXHUNT_NODE", socket.gethostname())}
        append_json(self.path, line)

    def _close_the_dead(self, attempts: list[Attempt]) -> None:
        """The lease is ours, so an attempt without an end is dead; the last one's cause may come from the workflow."""
        for past in attempts:
            code, status, message = last_retry() if past is attempts[-1] else (None, "", "")
            why = classify(code, status, message)
            # "done" is said when the training is; the same process may still die of memory while it judges the fold.
            died_judging = past.why == "done" and code is not None and why == OUT_OF_MEMORY
            if past.ended is not None and not died_judging:
                continue
            append_json(
                self.path,
                {
                    "event": "end",
                    "attempt": past.attempt,
                    "time": past.ended or time.time(),
                    "last_step": past.last_step,
                    "why": why,
                    "exit_code": code,
                    "written_by": "next attempt",
                },
            )
