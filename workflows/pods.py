"""A container template as a process: command, environment, log, attempts with the retry rule, outputs from files."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows import nodes
from workflows.expressions import evaluate
from workflows.identity import code_identity, trainer_command
from workflows.nodes import Attempt, Node, Result
from workflows.substitute import move_mounts, resolve

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
GPU_RESOURCE = "nvidia.com/gpu"
TRAINER = ["python", "-m", "trainer"]
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_TRANSIENT = (errno.ENOSPC, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EDQUOT)
NOT_FOUND = 127  # as a shell says it
_ERROR = "error: "  # how every command begins to say why it failed
_TAIL, _SAID = 8192, 200  # bytes of a log that are looked at, characters that are shown


def seconds(text: str) -> float:
    """ "5m" -> 300.0; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", str(text).strip())
    if not match:
        raise ValueError(f"duration {text!r}: expected a number with ms, s, m or h")
    return float(match[1]) * _UNITS[match[2]]


def wait_before(backoff: dict[str, Any], retries: int) -> float:
    """Seconds before attempt `retries` + 1, by the template's own rule."""
    wait = seconds(backoff.get("duration", "0")) * float(backoff.get("factor", 1)) ** retries
    return min(wait, seconds(backoff["cap"])) if "cap" in backoff else wait


def comes_back(retry: dict[str, Any] | None, last: Attempt, retries: int) -> bool:
    """Whether policy, expression and limit allow one more attempt after `retries` of them."""
    if not retry or retries >= int(retry.get("limit", sys.maxsize)):
        return False
    policy = retry.get("retryPolicy", "Always" if "expression" in retry else "OnFailure")
    if policy != "Always" and policy != {nodes.FAILED: "OnFailure", nodes.ERROR: "OnError"}[last.status]:
        return False
    scope = {"lastRetry": last_retry(last), "retries": str(retries)}
    return bool(evaluate(retry["expression"], scope)) if "expression" in retry else True


def last_retry(last: Attempt | None) -> dict[str, str]:
    """The `lastRetry` variables, all text; of the first attempt as the controller fills them."""
    if last is None:
        return {"exitCode": "0", "status": "", "message": "", "duration": "0"}
    code = -1 if last.exit_code is None else last.exit_code
    duration = int((last.ended or last.started) - last.started)
    return {"exitCode": str(code), "status": last.status, "message": last.message, "duration": str(duration)}


@dataclass
class Process:
    """What to start: a person could type `shown` and get the same."""

    argv: list[str]
    shown: str
    env: dict[str, str]
    cwd: str | None


class Pods:
    """Runs pods side by side, at most `jobs` at a time, until `stop` is called."""

    def __init__(
        self,
        logs: Path,
        jobs: int,
        backoff_scale: float,
        changed: Callable[[Node], None],
        keep_open: tuple[int, ...] = (),
        gpus: list[str] | None = None,
    ) -> None:
        self.logs, self.backoff_scale, self.changed, self.keep_open = logs, backoff_scale, changed, keep_open
        self.slots = asyncio.Semaphore(jobs)
        self.gpus: asyncio.Queue[str] = asyncio.Queue()
        for gpu in gpus or []:
            self.gpus.put_nowait(gpu)
        self.has_gpus = bool(gpus)
        self.stopping = asyncio.Event()
        self.running: dict[str, asyncio.subprocess.Process] = {}

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Passes the signal on to every process group; no attempt starts from now on."""
        self.stopping.set()
        for process in self.running.values():
            _signal_group(process.pid, signum)

    async def run(self, template: dict[str, Any], scope: dict[str, Any], node: Node) -> Result:
        """All attempts of one pod."""
        retry, last = template.get("retryStrategy"), None
        for retries in itertools.count():
            async with self.slots, self._gpu_for(template) as gpu:
                if self.stopping.is_set():
                    return self._close(node, nodes.OMITTED if last is None else nodes.FAILED, "stopped")
                last = await self._attempt(template, {**scope, **_attempt_scope(node, retries, last)}, node, gpu)
            if last.exit_code == 0:
                return self._succeeded(template, scope, node, last)
            if self.stopping.is_set() or not comes_back(retry, last, retries):
                return self._close(node, last.status, last.message)
            await self._wait(wait_before((retry or {}).get("backoff", {}), retries), node, last)
        raise AssertionError("unreachable")

    async def _wait(self, wait: float, node: Node, last: Attempt) -> None:
        wait *= self.backoff_scale
        node.phase, node.message = nodes.PENDING, f"{last.message}; again in {wait:.1f} s"
        self.changed(node)
        try:
            await asyncio.wait_for(self.stopping.wait(), wait)
        except TimeoutError:
            pass

    @asynccontextmanager
    async def _gpu_for(self, template: dict[str, Any]) -> AsyncIterator[str]:
        """A GPU of its own for a pod that asks for one, "" where there are none or none is asked for."""
        asked = GPU_RESOURCE in template["container"].get("resources", {}).get("limits", {})
        if not asked or not self.has_gpus:
            yield ""
            return
        gpu = await self.gpus.get()
        try:
            yield gpu
        finally:
            self.gpus.put_nowait(gpu)

    async def _attempt(self, template: dict[str, Any], scope: dict[str, Any], node: Node, gpu: str) -> Attempt:
        number = _next_number(self.logs, node.name)
        log = self.logs / f"{node.name}-{number}.log"
        attempt = Attempt(log=str(log), started=time.time())
        node.attempts.append(attempt)
        node.phase, node.message = nodes.RUNNING, ""
        self.changed(node)
        mounts = _mounts(template, log.with_suffix(".volumes"))
        what = make_process(template["container"], scope, mounts, log)
        if gpu:
            what.env["CUDA_VISIBLE_DEVICES"] = gpu
        try:
            code = await self._spawn(what, log, node.name)
            attempt.exit_code, attempt.status = (code if code >= 0 else 128 - code), nodes.FAILED
            attempt.message = _message(code, last_error(log))
        except OSError as error:
            attempt.status = nodes.ERROR if error.errno in _TRANSIENT else nodes.FAILED
            attempt.message = f"can't start {what.argv[0]}: {error.strerror}"
            attempt.exit_code = None if error.errno in _TRANSIENT else NOT_FOUND
        attempt.ended = time.time()
        return attempt

    async def _spawn(self, what: Process, log: Path, name: str) -> int:
        with log.open("w") as out:
            out.write(f"$ {what.shown}\n")
            out.flush()
            process = await asyncio.create_subprocess_exec(
                *what.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                env=what.env,
                cwd=what.cwd,
                start_new_session=True,  # Ctrl-C reaches the runner alone, which passes it on once
                preexec_fn=_die_with_parent,
                pass_fds=self.keep_open,
            )
        self.running[name] = process
        if self.stopping.is_set():  # the signal came while the process was being started
            _signal_group(process.pid, signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            del self.running[name]
            _signal_group(process.pid, signal.SIGKILL)  # what it left behind in its group

    def _succeeded(self, template: dict[str, Any], scope: dict[str, Any], node: Node, last: Attempt) -> Result:
        mounts = _mounts(template, Path(last.log).with_suffix(".volumes"))
        wanted = template.get("outputs", {})
        for parameter in wanted.get("parameters", []):
            source = parameter["valueFrom"]
            path = Path(resolve(move_mounts(source["path"], mounts), scope))
            if path.is_file():
                node.outputs[parameter["name"]] = path.read_text().rstrip("\n")
            elif "default" in source:
                node.outputs[parameter["name"]] = source["default"]
            else:
                return self._close(node, nodes.FAILED, f"no output {parameter['name']}: {path} was not written")
        for artifact in wanted.get("artifacts", []):
            path = Path(resolve(move_mounts(artifact["path"], mounts), scope))
            if path.exists():
                node.artifacts[artifact["name"]] = str(path)
            elif not artifact.get("optional"):
                return self._close(node, nodes.FAILED, f"no artifact {artifact['name']}: {path} was not written")
        return self._close(node, nodes.SUCCEEDED, "")

    def _close(self, node: Node, phase: str, message: str) -> Result:
        node.phase, node.message = phase, message
        self.changed(node)
        return Result(phase, node.outputs)


def make_process(container: dict[str, Any], scope: dict[str, Any], mounts: dict[str, str], log: Path) -> Process:
    """The container's command with its tags resolved; `python` is this interpreter."""
    written = [*container["command"], *container.get("args", [])]
    for mount, folder in mounts.items():
        if any(move_mounts(word, {mount: folder}) != word for word in written):
            Path(folder).mkdir(parents=True, exist_ok=True)
    words = [resolve(move_mounts(word, mounts), scope) for word in written]
    argv = words
    if words[: len(TRAINER)] == TRAINER:
        argv = [*trainer_command(), *words[len(TRAINER) :]]
    elif words[0] == "python":
        argv = [sys.executable, *words[1:]]
    env = dict(os.environ, PYTHONUNBUFFERED="1", ARGO_PROGRESS_FILE=str(nodes.progress_file(str(log))))
    env["FOXHUNT_COMMIT"] = code_identity()  # an image carries it; here the checkout knows
    for item in container.get("env", []):
        value = item.get("value")
        # A cache on a pod's own volume lasts as long as the pod; here the user's own cache serves better.
        if value is None or move_mounts(value, mounts) != value:
            continue
        env[item["name"]] = resolve(value, scope)
    return Process(argv, shlex.join(words), env, container.get("workingDir"))


def _attempt_scope(node: Node, retries: int, last: Attempt | None) -> dict[str, Any]:
    return {"retries": str(retries), "lastRetry": last_retry(last), "pod": {"name": f"{node.name}-{retries}"}}


def _mounts(template: dict[str, Any], folder: Path) -> dict[str, str]:
    """Mount path of each emptyDir -> a folder beside the attempt's log. Claims keep the paths that parameters name."""
    empty = {volume["name"] for volume in template.get("volumes", []) if "emptyDir" in volume}
    mounts = template["container"].get("volumeMounts", [])
    return {m["mountPath"]: str(folder / m["name"]) for m in mounts if m["name"] in empty}


def _next_number(logs: Path, name: str) -> int:
    """Attempts are counted over all submissions, so that no log is overwritten."""
    logs.mkdir(parents=True, exist_ok=True)
    numbers = [
        match[1] for p in logs.glob("*.log") if (match := re.fullmatch(re.escape(name) + r"-(\d+)\.log", p.name))
    ]
    return max(map(int, numbers), default=0) + 1


def last_error(log: Path) -> str:
    """What a process said when it failed: the first line of its last message, "" when it said nothing."""
    with log.open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - _TAIL))
        lines = handle.read().decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith(_ERROR)), "").removeprefix(_ERROR)
    return said if len(said) <= _SAID else f"{said[:_SAID]}..."


def _message(code: int, said: str) -> str:
    if code >= 0:
        return f"exit code {code}: {said}" if code and said else f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name} (exit code {128 - code})"


def _signal_group(pid: int, signum: int) -> None:
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def _die_with_parent() -> None:
    """In the child, before exec: a killed runner takes its processes along, gently (they save on SIGTERM)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def items_of(task: dict[str, Any], scope: dict[str, Any]) -> list[Any] | None:
    """The items of a fan-out, None for a plain task."""
    if "withItems" in task:
        return list(task["withItems"])
    if "withParam" in task:
        text = resolve(task["withParam"], scope)
        items = json.loads(text)
        if not isinstance(items, list):
            raise ValueError(f"withParam of task {task['name']}: not a list: {text[:80]}")
        return items
    if "withSequence" in task:
        return _sequence({key: resolve(str(value), scope) for key, value in task["withSequence"].items()})
    return None


def _sequence(given: dict[str, str]) -> list[str]:
    """count, or start to end inclusive (down when end is below start), each through a printf format."""
    start = int(given.get("start", "0"))
    if "count" in given:
        numbers = list(range(start, start + int(given["count"])))
    else:
        end = int(given["end"])
        numbers = list(range(start, end + 1)) if end >= start else list(range(start, end - 1, -1))
    return [given.get("format", "%d") % number for number in numbers]
