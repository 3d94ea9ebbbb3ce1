"""What a local submission leaves in its run's folder for `list`, `watch`, `logs` and `resubmit`: `submit.json`.

<runs>/alpha-rl-runs/<run-id>/submit.json     parameters, times, nodes with their attempts
<runs>/alpha-rl-runs/<run-id>/logs/           <task>-<attempt>.log, one a process
<runs>/alpha-rl-runs/<run-id>/logs/lock       held by the submission and by every process it started
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workflows.errors import UsageError, nearest
from workflows.nodes import RUNNING, Node

RUN_FOLDERS = "*-runs"
STATE = "submit.json"
INTERRUPTED_PHASE = "Interrupted"


@dataclass
class Submission:
    """The newest submission of a run."""

    run_id: str
    recipe: str
    command: str
    parameters: dict[str, str]
    started: float
    pid: int
    jobs: int
    phase: str = RUNNING
    finished: float | None = None
    exit_code: int | None = None
    nodes: list[Node] = field(default_factory=list)

    def node(self, node: Node) -> None:
        """Adds a node, or takes its newer state."""
        self.nodes = [*(n for n in self.nodes if n.name != node.name), node]


def run_folder(runs: Path, recipe: str, run_id: str) -> Path:
    return runs / f"{recipe}-runs" / run_id


def write(folder: Path, submission: Submission) -> None:
    """Whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{STATE}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(submission), indent=1))
    temporary.replace(folder / STATE)


def read(folder: Path) -> Submission:
    """Raises UsageError when the file is damaged. A submission whose process is gone reads as interrupted."""
    try:
        tree: dict[str, Any] = json.loads((folder / STATE).read_text())
        tree["nodes"] = [Node.from_dict(node) for node in tree["nodes"]]
        submission = Submission(**tree)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{folder / STATE}: can't be read: {error}") from None
    if submission.phase == RUNNING and not is_locked(folder):
        submission.phase = INTERRUPTED_PHASE
    return submission


def all_runs(runs: Path) -> Iterator[Path]:
    """Folders of the runs that were submitted here, newest first."""
    found = list(runs.glob(f"{RUN_FOLDERS}/*/{STATE}"))
    for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True):
        yield path.parent


def find(runs: Path, name: str) -> Path:
    """A run by its id or the unique beginning of it; "" is the newest."""
    folders = list(all_runs(runs))
    if not folders:
        raise UsageError(f"no runs under {runs}\nstart one: python -m workflows.submit --folds 3")
    if not name:
        return folders[0]
    found = [f for f in folders if f.name == name] or [f for f in folders if f.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = [folder.name for folder in folders]
    if found:
        raise UsageError(f"run {name!r}: more than one begins so: {', '.join(f.name for f in found)}")
    raise UsageError(f"run {name!r}: none under {runs}{nearest(name, names)}\nsee python -m workflows.list")


def is_locked(folder: Path) -> bool:
    """Whether a submission, or a process it left behind, still works on the run."""
    lock = folder / "logs" / "lock"
    if not lock.exists():
        return False
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_run(folder: Path, patience: float = 30.0) -> int:
    """Takes the run for this process; returns the lock's file descriptor, which child processes must inherit.

    Waits while processes of a killed submission save their state. Raises UsageError when the run is in use.
    """
    path = folder / "logs" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(handle, 32, 0).decode().strip()
            alive = owner.isdecimal() and _alive(int(owner))
            if alive or time.monotonic() > give_up:
                os.close(handle)
                who = f"process {owner}" if alive else "processes of an earlier submission"
                raise UsageError(
                    f"run {folder.name}: {who} works on it\nwatch it: python -m workflows.watch {folder.name}"
                ) from None
            time.sleep(0.1)
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
