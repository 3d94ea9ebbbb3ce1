"""Leaves before the kernel kills: watches the working set of the process's own memory cgroup.

A container that runs into its limit may lose all its processes at once, the workflow's own among them, and then nobody
tells the workflow. So above 92 % of the limit the trainer saves at the next step boundary and exits 77; the retry gets
more memory. Working set = usage - inactive file pages, as the kubelet counts it. FOXHUNT_MEMORY_GUARD=off: no guard.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from trainer.errors import CrashLoop, OutOfMemory

LIMIT_SHARE = 0.92
PERIOD_S = 0.5
NO_LIMIT = 1 << 60  # cgroup v1 says "no limit" with a number beyond any machine's memory
GROWN_AFTER = ("77", "137")  # exit codes after which the workflow gives the next attempt more memory

log = structlog.get_logger()


@dataclass(frozen=True)
class MemoryCgroup:
    """A cgroup with a limit, in bytes. `usage`, `inactive` name the file and the key of its version."""

    folder: Path
    limit: int
    usage: str
    inactive: str

    def working_set(self) -> int | None:
        """Bytes that the kernel can't get back by dropping cold file pages; None when the files can't be read."""
        try:
            used = int((self.folder / self.usage).read_text())
            stat = (self.folder / "memory.stat").read_text()
        except (OSError, ValueError):
            return None
        inactive = next((line.split()[1] for line in stat.splitlines() if line.startswith(f"{self.inactive} ")), "0")
        return max(used - int(inactive), 0)


@dataclass(frozen=True)
class _Version:
    """What tells the two versions of cgroups apart."""

    filesystem: str
    controller: str  # in /proc/self/cgroup; "" in v2
    limit: str
    usage: str
    inactive: str


_VERSIONS = (
    _Version("cgroup2", "", "memory.max", "memory.current", "inactive_file"),
    _Version("cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def find_cgroup(root: Path = Path("/")) -> MemoryCgroup | None:
    """The cgroup with the smallest limit from the process's own upwards, None without one. `root` is for tests."""
    found = [cgroup for version in _VERSIONS for cgroup in _limited(root, version)]
    return min(found, key=lambda cgroup: cgroup.limit, default=None)


def _limited(root: Path, version: _Version) -> Iterator[MemoryCgroup]:
    own, mount = _own_path(root, version), _mount(root, version)
    if own is None or mount is None:
        return
    shown, point = mount
    top = root / point.lstrip("/")
    # A container may see its own cgroup as the mount's root, whatever the path that the host knows it by.
    below = os.path.relpath(own, shown)
    folder = top if below.startswith("..") else top / below
    while True:
        limit = _read_limit(folder / version.limit)
        if limit is not None:
            yield MemoryCgroup(folder, limit, version.usage, version.inactive)
        if folder == top or top not in folder.parents:
            return
        folder = folder.parent


def _own_path(root: Path, version: _Version) -> str | None:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if version.controller in controllers.split(","):
            return path
    return None


def _mount(root: Path, version: _Version) -> tuple[str, str] | None:
    """(path of the cgroup that the mount shows, mount point)."""
    for line in _lines(root / "proc/self/mountinfo"):
        where, _, what = line.partition(" - ")
        fields, kind = where.split(), what.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] != version.filesystem:
            continue
        if not version.controller or version.controller in kind[2].split(","):
            return fields[3], fields[4]
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_limit(path: Path) -> int | None:
    try:
        value = int(path.read_text())  # v2 says "max" for none
    except (OSError, ValueError):
        return None
    return value if 0 < value < NO_LIMIT else None


class MemoryGuard:
    """`with MemoryGuard() as guard:` watches on a thread; `guard.exceeded` is read at each step boundary.

    `limit` is in bytes, None where nothing limits this process or the guard is off.
    """

    def __init__(self, cgroup: MemoryCgroup | None = None, period_s: float = PERIOD_S):
        off = os.environ.get("FOXHUNT_MEMORY_GUARD", "").lower() == "off"
        self.cgroup = None if off else cgroup or find_cgroup()
        self.limit = self.cgroup.limit if self.cgroup else None
        self.period_s = period_s
        self.exceeded = False
        self.seen = 0  # bytes, the working set that set the flag
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MemoryGuard:
        if self.cgroup is not None:
            self.look()
            self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Measures now; True from the first time that the working set is above its share of the limit."""
        if self.cgroup is not None and not self.exceeded:
            used = self.cgroup.working_set()
            if used is not None and used > LIMIT_SHARE * self.cgroup.limit:
                self.seen, self.exceeded = used, True
        return self.exceeded

    def require_room(self, what: str) -> None:
        """Raises OutOfMemory where the memory is used up before `what`."""
        if self.look():
            raise OutOfMemory(f"{self.describe()}, {what}\nrun the same command again with more memory")

    def _watch(self) -> None:
        while not self._stop.wait(self.period_s) and not self.look():
            pass

    def describe(self) -> str:
        return f"memory: {mebibytes(self.seen)} in use of a limit of {mebibytes(self.limit or 0)}"


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def require_memory(limit: int | None, too_small: int | None) -> None:
    """Refuses a pod whose limit is known to be too small, before anything large is allocated.

    `too_small` is the largest limit, in bytes, under which an earlier attempt of this fold ran out of memory. The
    workflow's rule for a retry sees nothing but the last exit code: after 77 or 137 it gives more memory, after an
    interruption in between it doesn't. So the trainer asks again by exit 77. An attempt that already got more and still
    has no more than what was too small can't be helped by another one: exit 76.
    """
    in_pod = bool(os.environ.get("FOXHUNT_POD"))
    if not in_pod or limit is None or too_small is None or limit > too_small:
        return
    short = (
        f"memory: an earlier attempt ran out of memory at {mebibytes(too_small)}, and this pod has {mebibytes(limit)}"
    )
    if os.environ.get("FOXHUNT_LAST_EXIT_CODE", "") in GROWN_AFTER:
        raise CrashLoop(
            f"{short}, the most that a retry gets\n"
            f"submit the same run again with a larger parameter memory-mi (now it grows to {limit >> 20}); it goes on\n"
            "from its checkpoint. A smaller env.n_backtests or learn.per_capacity needs less, and makes another run"
        )
    raise OutOfMemory(f"{short}\nthe next attempt gets more")
