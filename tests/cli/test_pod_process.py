"""Training as a pod meets it: a memory limit, the workflow's word on the last attempt, progress, outputs, heartbeat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.processes import REPO, STEPS
from trainer.learn.lease import owner_of_this_process
from trainer.learn.memory_guard import find_cgroup

MIB = 1 << 20
LIMIT = 600 * MIB
BALLAST = """
import time
from trainer.learn.memory_guard import find_cgroup
input()
cgroup, kept = find_cgroup(), []
while cgroup.working_set() < 0.95 * cgroup.limit:
    kept.append(bytearray(b"x") * (1 << 20))
time.sleep(60)
"""  # enough for the guard, too little for the kernel
POD = {"FOXHUNT_POD": "alpha-rl-x-train-1", "FOXHUNT_WORKFLOW": "uid-1", "FOXHUNT_RETRIES": "1"}


def last(code: str, status: str = "Failed", message: str = "") -> dict[str, str]:
    return {"FOXHUNT_LAST_EXIT_CODE": code, "FOXHUNT_LAST_STATUS": status, "FOXHUNT_LAST_MESSAGE": message}


# -- a real memory limit --


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup of the test's own below this process's, with a limit; skips where it can't be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
    base, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if own is None:
        own, base, name = lines[0].split(":", 2)[2], Path("/sys/fs/cgroup"), "memory.max"
    folder = base / own.lstrip("/") / f"foxhunt-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(limit))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"needs root and a memory cgroup of its own: {error}")
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        folder.rmdir()


def start_in(folder: Path, code: str) -> subprocess.Popen[str]:
    """Python code that begins with input(), by then in the cgroup."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO
    )
    (folder / "cgroup.procs").write_text(str(process.pid))
    return process


def test_near_the_limit_it_saves_and_leaves_and_loses_no_step(trained, fresh):
    with memory_cgroup(LIMIT) as folder:
        running = fresh.start_training("--n-steps", "100000")
        (folder / "cgroup.procs").write_text(str(running.process.pid))
        ballast = start_in(folder, BALLAST)
        running.wait_for_step(45)
        with suppress(subprocess.TimeoutExpired):
            ballast.communicate("\n", timeout=0.1)
        ended = running.end()
        ballast.kill()
        ballast.communicate()
    ended.fails(77, "MiB in use of a limit of 600 MiB", "of 100000 is saved in", "again with more memory")
    start, end = fresh.ledger()
    assert (end["why"], end["exit_code"], start["memory_limit"]) == ("out of memory", 77, LIMIT)
    saved = int(fresh.newest().stem.split("-")[1])
    assert end["last_step"] == saved >= 45
    total = str(max(saved, STEPS) + 10)
    fresh.train("--n-steps", total).succeeds("resumed", f"step={saved}")
    trained.train("--n-steps", total).succeeds()
    assert fresh.state() == trained.state()


def test_a_pod_known_to_have_too_little_leaves_before_it_trains(fresh):
    with memory_cgroup(LIMIT) as folder:

        def in_pod(code: str):
            words = ("train", "--fold", "0", "--no-evaluate")
            running = fresh.start(*words, **POD, **last(code, "Failed" if code != "-1" else "Error"))
            (folder / "cgroup.procs").write_text(str(running.process.pid))
            return running.end()

        fresh.fold.mkdir()
        start = {"event": "start", "attempt": 0, "time": 1.0, "resumed_step": 0, "memory_limit": LIMIT}
        end = {"event": "end", "attempt": 0, "time": 2.0, "last_step": 9, "why": "out of memory", "exit_code": 77}
        (fresh.fold / "attempts.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(end)}\n")
        in_pod("-1").fails(77, "ran out of memory at 600 MiB, and this pod has 600 MiB", "the next attempt gets more")
        in_pod("77").fails(76, "the most that a retry gets", "larger parameter memory-mi")
    ends = [line for line in fresh.ledger() if line["event"] == "end"]
    assert [(e["why"], e["exit_code"]) for e in ends[1:]] == [("out of memory", 77), ("out of memory", 76)]
    assert not list(fresh.fold.glob("checkpoint-*"))


def test_the_limit_of_this_very_process_is_found():
    code = "import trainer.learn.memory_guard as g; input(); c = g.find_cgroup(); print(c.limit, c.working_set())"
    with memory_cgroup(LIMIT) as folder:
        out, _ = start_in(folder, code).communicate("\n")
    limit, used = map(int, out.split())
    assert limit == LIMIT and 0 <= used < LIMIT
    outer = find_cgroup()
    assert outer is None or outer.limit != LIMIT


# -- the lease in pods --


def lease_of(folder: Path, **owner: str) -> None:
    foreign = owner_of_this_process() | {"boot_id": "elsewhere", "pod": "alpha-rl-x-train-0", **owner}
    value = {"owner": foreign, "token": 3, "heartbeat": time.time(), "released": False}
    (folder / "lease").write_text(json.dumps(value))


def test_an_attempt_that_the_workflow_saw_end_is_replaced_at_once(fresh):
    fresh.fold.mkdir()
    lease_of(fresh.fold, workflow="uid-1", retries="0")
    started = time.monotonic()
    words = ("train", "--fold", "0", "--no-evaluate", "--n-steps", "5")
    fresh.run(*words, **POD, **last("137")).succeeds("lease taken over", "owner is dead")
    assert time.monotonic() - started < 30


# -- progress, outputs, signs of life --


def test_every_path_writes_progress_and_outputs(fresh):
    out = fresh.root / "out"
    for word in ("judged", "already done"):
        fresh.run("train", "--fold", "0", "--outputs", str(out)).succeeds(word)
        assert (fresh.root / "progress").read_text().strip() == f"{STEPS}/{STEPS}"
        names = {"wr", "hold-pct", "metrics.jsonl", "fold_result.json"}
        assert {p.name for p in out.iterdir()} == names
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert lines[-1]["step"] == STEPS and json.loads((out / "fold_result.json").read_text())["fold"] == 0
        for path in out.iterdir():
            path.unlink()


def test_sigterm_leaves_any_command_gently(fresh):
    cache = fresh.root / "another"
    running = fresh.start("precompute", "--data", "synthetic:rows=3000000", "--folds", "1", "--cache", str(cache))
    running.wait_for_line("fxcache miss")
    time.sleep(0.3)
    ended = running.send(signal.SIGTERM).end()
    assert ended.code == 75 and "Traceback" not in ended.err
    assert "error: interrupted; what was saved is kept\nrun the same command again" in ended.err
    assert not [p for p in cache.rglob("*") if p.is_file()]
