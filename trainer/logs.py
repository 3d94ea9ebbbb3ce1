"""Structured logs: readable lines on stderr, the same lines in the fold folder's log file.

In a pod also what the other commands print, in the run's folder, because a pod's log goes when the pod goes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO

import structlog

_file: IO[str] | None = None


class _Tee:
    """A structlog logger that prints to stderr and to the open log file, if there is one."""

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        if _file is not None:
            with suppress(OSError):  # a full disk must not end a run for a log line; stderr has it
                print(message, file=_file, flush=True)

    log = debug = info = warning = error = critical = exception = failure = msg


def configure_logs() -> None:
    """Call once at the start of a command."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        logger_factory=lambda *_: _Tee(),
        cache_logger_on_first_use=False,
    )


class _Kept:
    """A standard stream whose text also goes to a file; a disk that is full or away must not end the command."""

    def __init__(self, stream: TextIO, file: IO[str]) -> None:
        self.stream, self.file = stream, file

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.file.write(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def keep_output(path: Path) -> None:
    """Also appends to `path` what is printed from now on, on stdout and stderr."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8", buffering=1)
        sys.stdout, sys.stderr = _Kept(sys.stdout, file), _Kept(sys.stderr, file)  # type: ignore[assignment]


def log_to(path: Path) -> None:
    """Also appends every line to `path` from now on."""
    global _file
    if _file is not None:
        with suppress(OSError):  # what the full disk refused before
            _file.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    _file = open(path, "a", encoding="utf-8")
