"""`python -m trainer verify-resume`: kills a training process at random moments and compares the end states.

The same training twice in throw-away folders: one undisturbed, one killed with SIGKILL and started again with the same
command. Both end states are hashed over every checkpointed array.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainer.errors import FoxhuntError, UsageError
from trainer.learn.checkpoint import list_checkpoints, read_checkpoint, state_hash

PATIENCE_S = 600.0


class _Runs:
    """The same training command in two folders that share one feature cache."""

    def __init__(self, root: Path, steps: int, every: int, config: str, overrides: list[str], data: str):
        self.root, self.steps = root, steps
        self.common = ["--runs", str(root / "runs"), "--cache", str(root / "cache"), "--config", config]
        items = [*overrides, f"run.n_steps={steps}", f"run.checkpoint_every={every}", "run.metrics_every=10"]
        self.settings = [word for item in items for word in ("--set", item)]
        self.data = data

    def call(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trainer", *words, *self.common, *self.settings]
        environment = os.environ | {"ARGO_PROGRESS_FILE": str(self.root / "progress")}
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd()
        )

    def prepare(self, name: str) -> None:
        self.finish(self.call("precompute", "--run-id", name, "--data", self.data, "--folds", "1"))

    def train(self, name: str) -> subprocess.Popen[str]:
        (self.root / "progress").unlink(missing_ok=True)
        return self.call("train", "--run-id", name, "--fold", "0", "--no-evaluate")

    def finish(self, process: subprocess.Popen[str]) -> None:
        _, err = process.communicate(timeout=PATIENCE_S)
        if process.returncode == 2:
            raise UsageError(err.strip().rpartition("error: ")[2] or "the trainer refused its arguments")
        if process.returncode:
            raise FoxhuntError(f"the trainer ended with {process.returncode}\n{err.strip()}")

    def step(self) -> int:
        try:
            return int((self.root / "progress").read_text().partition("/")[0] or 0)
        except (OSError, ValueError):
            return 0

    def state(self, name: str) -> str:
        folder = self.root / "runs" / "alpha-rl-runs" / name / "fold0"
        return state_hash(read_checkpoint(list_checkpoints(folder)[0]).arrays)


def verify(kills: int, steps: int, config: str, overrides: list[str], data: str, seed: int) -> None:
    """Prints each kill and both hashes. Raises FoxhuntError (exit 1) when they differ."""
    rng = random.Random(None if seed < 0 else seed)
    every = max(10, steps // (2 * kills + 2))
    with tempfile.TemporaryDirectory(prefix="foxhunt-verify-") as root:
        runs = _Runs(Path(root), steps, every, config, overrides, data)
        print(f"{steps} steps, a checkpoint every {every}, {kills} kills; config {config}, data {data}", flush=True)
        for name in ("straight", "killed"):
            runs.prepare(name)
        started = time.monotonic()
        runs.finish(runs.train("straight"))
        straight = runs.state("straight")
        print(f"straight   {time.monotonic() - started:6.1f} s  state {straight}", flush=True)
        # Moments spread over the whole run, each anywhere in its share, so that no stretch is spared.
        moments = [int((k + rng.random()) * (steps - 10) / kills) for k in range(kills)]
        for number, moment in enumerate(moments, 1):
            _kill_at(runs, runs.train("killed"), moment, rng, number)
        runs.finish(runs.train("killed"))
        killed = runs.state("killed")
        print(f"killed     {kills} times      state {killed}", flush=True)
        if killed != straight:
            raise FoxhuntError("verify-resume: the end states differ\nreport this as a bug, with the two lines above")
        print("identical: every array of both end states has the same bits")


def _kill_at(runs: _Runs, process: subprocess.Popen[str], moment: int, rng: random.Random, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while runs.step() < moment and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise FoxhuntError(f"verify-resume: no progress past step {runs.step()} in {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    time.sleep(rng.random() * 0.3)  # also in the middle of a checkpoint's write
    if process.poll() is not None:
        if process.returncode not in (0, -signal.SIGKILL):
            runs.finish(process)
        print(f"kill {number}: the run had ended before step {moment}", flush=True)
        return
    process.kill()
    process.wait()
    print(f"kill {number}: kill -9 at about step {runs.step()}", flush=True)
