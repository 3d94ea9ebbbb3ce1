"""One process owns a fold folder. `lease` names the owner and carries a fencing token and a heartbeat.

No flock: the folder may be on NFS. A taker claims token + 1 by an exclusive create, then replaces the lease; whoever
lost (a pod whose node was cut off and came back) sees a higher token before its next rename and leaves without writing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from trainer.errors import FoxhuntError, Interrupted, LeaseError, of_os_error
from trainer.files import write_json
from trainer.learn.ledger import last_retry

STALE_S = 60.0
HEARTBEAT_S = 10.0

log = structlog.get_logger()


class LeaseLost(Interrupted):
    """Another process owns the folder now; nothing more may be written by this one."""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which `pid` started, or "" when there is no such process (or it is a zombie)."""
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def owner_of_this_process() -> dict[str, Any]:
    return {
        "pod": os.environ.get("FOXHUNT_POD", ""),
        "workflow": os.environ.get("FOXHUNT_WORKFLOW", ""),
        "retries": os.environ.get("FOXHUNT_RETRIES", ""),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _start_time(os.getpid()),
        "boot_id": _read_text("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _pid_namespace(),
    }


def known_dead(owner: dict[str, Any]) -> bool:
    """True when the owner ran on this boot and in this pid namespace and its process is gone."""
    here = owner_of_this_process()
    if not here["boot_id"] or any(owner.get(k) != here[k] for k in ("boot_id", "pid_namespace")):
        return False
    return _start_time(int(owner.get("pid", 0))) != owner.get("started")


def earlier_attempt(owner: dict[str, Any]) -> int:
    """How many attempts of the same workflow's pod lie between the owner and this process; 0: it is none of them."""
    here = owner_of_this_process()
    try:
        before = int(here["retries"]) - int(owner["retries"])
    except (KeyError, ValueError):
        return 0
    return max(before, 0) if here["workflow"] and owner.get("workflow") == here["workflow"] else 0


def reported_ended(owner: dict[str, Any]) -> bool:
    """True when the owner was the attempt before this one and its node has reported how its container ended.

    An exit code of a failed pod comes from the kubelet, after the container is gone. "Pod deleted" and a lost node
    leave a doubt, because the process may go on behind a cut network; then the heartbeat decides.
    """
    code, status, _ = last_retry()
    return earlier_attempt(owner) == 1 and status == "Failed" and code is not None


def describe(owner: dict[str, Any]) -> str:
    return f"pod {owner['pod']}" if owner.get("pod") else f"process {owner.get('pid')} on {owner.get('host')}"


class Lease:
    """`with Lease(folder):` owns the folder; `check()` before each rename raises LeaseLost when it no longer does."""

    def __init__(self, folder: Path, wait_s: float = 0.0, stale_s: float = STALE_S, heartbeat_s: float = HEARTBEAT_S):
        self.path = folder / "lease"
        self.wait_s, self.stale_s, self.heartbeat_s = wait_s, stale_s, heartbeat_s
        self.token = 0
        self.owner = owner_of_this_process()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def acquire(self) -> None:
        """Raises LeaseError when a live process owns the folder (after `wait_s`)."""
        deadline = time.monotonic() + self.wait_s
        while True:
            current = self._read()
            why = self._may_take(current)
            if why and self._claim(int(current.get("token", 0)) + 1 if current else 1):
                break
            if time.monotonic() >= deadline:
                raise self._refusal(current)
            time.sleep(min(1.0, self.heartbeat_s))
        if current:
            log.info("lease taken over", why=why, previous=describe(current["owner"]), token=self.token)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def _refusal(self, current: dict[str, Any] | None) -> FoxhuntError:
        """A rival is a mistake of the user's; an earlier attempt that is cut off and works on ends by itself."""
        owner = describe(current["owner"]) if current else "another process"
        what = f"fold folder {self.path.parent}: {owner} is working in it"
        if current and earlier_attempt(current["owner"]):
            return Interrupted(
                f"{what}, an earlier attempt that the workflow believes ended\n"
                "it is tried again later; if its node is gone for good, delete the node"
            )
        return LeaseError(
            f"{what}\nwait for it to end, or stop it; it loses the folder {self.stale_s:.0f} s after its last heartbeat"
        )

    def check(self) -> None:
        current = self._read()
        if current is None or int(current.get("token", 0)) != self.token:
            who = describe(current["owner"]) if current else "nobody"
            raise LeaseLost(f"fold folder {self.path.parent}: {who} owns it now; this process leaves without writing")

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(LeaseLost, OSError):
            self.check()
            write_json(self.path, self._value(released=True))

    def _value(self, released: bool = False) -> dict[str, Any]:
        return {"owner": self.owner, "token": self.token, "heartbeat": time.time(), "released": released}

    def _read(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self.path.read_text())
            return value if isinstance(value, dict) and isinstance(value.get("owner"), dict) else None
        except FileNotFoundError:
            return None
        except ValueError:
            return None

    def _may_take(self, current: dict[str, Any] | None) -> str:
        if current is None:
            return "no lease"
        if current.get("released"):
            return "released"
        if known_dead(current["owner"]) or reported_ended(current["owner"]):
            return "owner is dead"
        age = time.time() - float(current.get("heartbeat", 0))
        return f"no heartbeat for {age:.0f} s" if age > self.stale_s else ""

    def _claim(self, token: int) -> bool:
        claim = self.path.with_name(f"lease.claim-{token}")
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            # A taker that died between its claim and its lease must not block the folder for ever.
            with suppress(OSError):
                if time.time() - claim.stat().st_mtime > self.stale_s:
                    claim.unlink()
            return False
        except OSError as error:
            if isinstance(of_os_error(error), Interrupted):  # a full disk is not a wrong folder
                raise
            raise LeaseError(
                f"fold folder {self.path.parent}: can't write there ({error.strerror})\n"
                "give --runs a folder that this user may write"
            ) from None
        self.token = token
        try:
            write_json(self.path, self._value())
        finally:
            claim.unlink(missing_ok=True)
        return True

    def _beat(self) -> None:
        while not self._stop.wait(self.heartbeat_s):
            try:
                self.check()
                write_json(self.path, self._value())
            except LeaseLost as lost:
                log.error("lease lost", why=str(lost))
                return
            except OSError as error:
                log.warning("lease heartbeat not written", why=error.strerror)
