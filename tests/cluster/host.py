"""Changes to this machine, each written down before it is made, so that `undo` can take all of them back.

The journal is a file of JSON lines in the run folder. Every process that we start lives in a cgroup of ours together
with whatever it starts, mounts live in mount namespaces that end with their processes, and addresses on a bridge.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.layout import BRIDGE, CACHE, CGROUP, LOGS, RUN

JOURNAL = RUN / "journal.jsonl"
_CGROUPS = Path("/sys/fs/cgroup")
_BEGAN = time.monotonic()
_IS_V2 = (_CGROUPS / "cgroup.controllers").exists()
_V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified")
# The kubelet sets these; they are put back.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)


class ClusterError(Exception):
    """The test cluster could not do what it was asked; the message ends with what its logs say."""


class Skip(Exception):
    """This machine can't run the cluster; the message says why."""


# What Go, apt, debootstrap and pip say when there is nothing to fetch from.
_UNREACHABLE = (
    "dial tcp",
    "no such host",
    "i/o timeout",
    "Temporary failure in name resolution",
    "Could not resolve",
    "Couldn't download",
    "Failed to establish a new connection",
    "No matching distribution found",
)


def unreachable(error: ClusterError) -> str:
    """The line of an error that says that something can't be fetched here; "" for any other error."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if any(sign in line for sign in _UNREACHABLE)), "")


def time_is_up() -> str:
    """With FOXHUNT_CLUSTER_MINUTES, why nothing more is to be begun, "" while there is time: a pipeline has a limit,
    and a slow machine may need all of it to build the cluster."""
    minutes = float(os.environ.get("FOXHUNT_CLUSTER_MINUTES", "inf"))
    over = time.monotonic() - _BEGAN > 60 * minutes
    return f"NOT RUN: the {minutes:g} minutes of FOXHUNT_CLUSTER_MINUTES are used up" if over else ""


@contextmanager
def or_skip() -> Iterator[None]:
    """A cluster that this machine can't have skips what needs it, with the reason."""
    import pytest

    try:
        yield
    except Skip as reason:
        pytest.skip(str(reason))
    except ClusterError as error:
        skip_if_optional(error)
        raise


def skip_if_optional(error: object) -> None:
    """With FOXHUNT_CLUSTER_OPTIONAL=1, as in a pipeline on machines nobody knows, a cluster that does not start is no
    verdict on the code: the tests skip and say so."""
    if os.environ.get("FOXHUNT_CLUSTER_OPTIONAL") == "1":
        import pytest

        pytest.skip(f"NOT RUN: the cluster does not start on this machine: {error}")


def run(*argv: str | Path, stdin: str | None = None, env: dict[str, str] | None = None, **more: Any) -> str:
    """Output of a command. Raises ClusterError with what it said."""
    words = [str(word) for word in argv]
    environment = {**os.environ, **env} if env else None
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, env=environment, **more)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"{' '.join(words)[:300]}: exit {done.returncode}\n{said}")
    return done.stdout


def until(what: str, test: Callable[[], bool], seconds: float, log: str = "", every: float = 0.2) -> None:
    """Waits for a condition; the message of its failure ends with the log's last lines."""
    give_up = time.monotonic() + seconds
    while not test():
        if time.monotonic() > give_up:
            raise ClusterError(f"not within {seconds:.0f} s: {what}\n{log_tail(log)}".rstrip())
        time.sleep(every)


def log_tail(name: str, lines: int = 15) -> str:
    try:
        return "\n".join((LOGS / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


@contextmanager
def exclusive() -> Iterator[None]:
    """One `up` or `down` at a time on a machine."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another `python -m tests.cluster`", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def note(what: str, **fields: Any) -> None:
    """One line in the journal, on disk before the change itself."""
    RUN.mkdir(parents=True, exist_ok=True)
    with JOURNAL.open("a") as out:
        out.write(json.dumps({"what": what, **fields}) + "\n")
        out.flush()
        os.fsync(out.fileno())


def journal(what: str) -> list[dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in JOURNAL.read_text().splitlines() if line.endswith("}")]
    except OSError:
        return []
    return [entry for entry in entries if entry["what"] == what]


# -- processes and cgroups --


def cgroup_folders(path: str) -> list[Path]:
    """Where a cgroup lies: one folder on v2, one a controller on v1."""
    if _IS_V2:
        return [_CGROUPS / path]
    return [folder / path for name in _V1_CONTROLLERS if (folder := _CGROUPS / name).is_dir()]


def tracking_folder(path: str) -> Path:
    """The one folder of a cgroup in which we look for processes."""
    return _CGROUPS / path if _IS_V2 else _CGROUPS / "pids" / path


def make_cgroup(path: str) -> None:
    """A cgroup whose children may have limits. `path` is relative to the hierarchy's root."""
    note("cgroup", path=path)
    for folder in cgroup_folders(path):
        folder.mkdir(exist_ok=True)
        if _IS_V2:
            for level in (folder.parent, folder):
                (level / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
        if (weight := folder / ("cpu.weight" if _IS_V2 else "cpu.shares")).exists() and "/" not in path:
            weight.write_text("400" if _IS_V2 else "4096")  # as four processes: a cluster is more than one
        if folder.is_relative_to(_CGROUPS / "cpuset"):
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((folder.parent / name).read_text())


def start(name: str, *argv: str | Path, env: dict[str, str] | None = None, group: str = "services") -> int:
    """Starts a daemon with its own log in a leaf cgroup below ours, so that whatever it starts is found too.

    Only containers leave that cgroup: for their node's own, which is below ours as well.
    """
    leaf = tracking_folder(f"{CGROUP}/{group}")
    note("cgroup", path=f"{CGROUP}/{group}")
    leaf.mkdir(exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: (leaf / "cgroup.procs").write_text("0") and None,
            env={**os.environ, **(env or {})},
        )
    note("process", name=name, pid=process.pid)
    return process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_in(path: str) -> list[int]:
    """Every process in a cgroup and below it."""
    found: list[int] = []
    for procs in tracking_folder(path).rglob("cgroup.procs"):
        try:
            found += [int(line) for line in procs.read_text().split() if int(line) > 0]
        except OSError as error:  # the cgroup went away, or is threaded
            if error.errno not in (errno.ENODEV, errno.ENOENT, errno.EOPNOTSUPP):
                raise
    return found


def kill_cgroup(path: str, seconds: float = 20) -> None:
    """SIGKILL for all in a cgroup, until none is left."""
    give_up = time.monotonic() + seconds
    while found := [pid for pid in pids_in(path) if is_running(pid)]:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > give_up:
            raise ClusterError(f"processes {found} of the test cluster don't end; look at /proc/{found[0]}/stack")
        time.sleep(0.1)


def remove_cgroup(path: str) -> None:
    for root in cgroup_folders(path):
        for folder in sorted(root.rglob("*/"), key=lambda p: -len(p.parts)) if root.is_dir() else []:
            _rmdir(folder)
        _rmdir(root)


def _rmdir(folder: Path) -> None:
    for _ in range(50):  # a cgroup is busy for a moment after its last process ended
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
        time.sleep(0.05)


# -- everything else --


def make_bridge(address: str) -> None:
    note("link", name=BRIDGE)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{address}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def make_folder(path: Path) -> None:
    """A folder outside ours that must exist as a mount point; removed again if it wasn't there and stays empty."""
    if not path.is_dir():
        note("folder", path=str(path))
        path.mkdir(parents=True)


def remember_sysctls() -> None:
    for name in SYSCTLS:
        path = Path("/proc/sys") / name
        if path.exists():
            note("sysctl", name=name, value=path.read_text().strip())


def free_prefix() -> str:
    """The first three bytes of a /24 that no interface or route of this machine touches."""
    taken = run("ip", "-4", "route", "show", "table", "all") + run("ip", "-4", "-o", "addr")
    for second in range(244, 256):
        if f"10.{second}." not in taken:
            return f"10.{second}.0"
    raise ClusterError("no free subnet: 10.244 to 10.255 are all in use on this machine")


def mounts_below(*folders: Path) -> list[str]:
    """Mount points under the folders in our own mount namespace, deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    inside = [p for p in points if any(Path(p).is_relative_to(folder) for folder in folders)]
    return sorted(inside, key=len, reverse=True)


def _remove(path: Path, seconds: float = 30) -> None:
    """A file or a folder, also while what a killed `up` left behind (a copy of images, say) still writes into it."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > give_up:
                raise
        time.sleep(0.1)


def undo() -> list[str]:
    """Takes back everything in the journal and removes the run folder; returns what it had to clean."""
    if not RUN.exists():
        return []
    done = []
    for entry in journal("process"):
        if is_running(entry["pid"]) and entry["pid"] in pids_in(CGROUP):
            done.append(f"process {entry['name']}")
    kill_cgroup(CGROUP)
    for point in mounts_below(RUN, CACHE):
        run("umount", "--lazy", point)
        done.append(f"mount {point}")
    for entry in journal("link"):
        if Path("/sys/class/net", entry["name"]).exists():
            run("ip", "link", "delete", entry["name"])
            done.append(f"link {entry['name']}")
    for entry in reversed(journal("cgroup")):
        remove_cgroup(entry["path"])
    restored: dict[str, str] = {}
    for entry in journal("sysctl"):
        restored.setdefault(entry["name"], entry["value"])
    for name, value in restored.items():
        path = Path("/proc/sys") / name
        if path.read_text().strip() != value:
            path.write_text(value)
            done.append(f"sysctl {name}")
    for entry in reversed(journal("folder")):
        try:
            Path(entry["path"]).rmdir()
        except OSError:  # gone, or somebody else's by now
            pass
    for path in RUN.iterdir():
        if path != JOURNAL:  # last, or a crash in here would forget the rest
            _remove(path)
    JOURNAL.unlink(missing_ok=True)
    RUN.rmdir()
    return [*done, f"folder {RUN}"]
