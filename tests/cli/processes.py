"""The trainer as a user runs it: `python -m trainer ...` in processes of its own, over a tiny study."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.learn.checkpoint import list_checkpoints

REPO = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0  # a machine that is busy with other work may need minutes for what takes a second
STEPS = 100

PROFILE = f"""
[data]
label_rows = 5
[env]
n_backtests = 8
episode_len = 12
[net]
d_model = 8
layers = 1
window = 6
d_state = 4
headdim = 8
hidden = 8
backbone = 8
[learn]
batch = 4
per_capacity = 256
n_step = 2
[eval]
bootstrap_samples = 100
[run]
n_steps = {STEPS}
checkpoint_every = 20
metrics_every = 5
validate_every = 0
"""


@dataclass(frozen=True)
class Ended:
    """A process that ended: `code` is the exit code, negative for a signal."""

    code: int
    out: str
    err: str

    def fails(self, code: int, *words: str) -> Ended:
        """Asserts a failure told in one message: its exit code, its words on stderr, no traceback."""
        assert self.code == code, f"exit {self.code}, not {code}\n{self.err}"
        assert "Traceback" not in self.err + self.out, self.err
        message = self.err[self.err.index("error: ") :]
        for word in words:
            assert word in message, f"{word!r} is not in {message!r}"
        return self

    def succeeds(self, *words: str) -> Ended:
        assert self.code == 0, f"exit {self.code}\n{self.err}"
        for word in words:
            assert word in self.err + self.out, f"{word!r} is not in {self.err}"
        return self


class Running:
    """A process that was started."""

    def __init__(self, process: subprocess.Popen[str], progress: Path):
        self.process, self.progress = process, progress

    def step(self) -> int:
        try:
            return int(self.progress.read_text().partition("/")[0] or 0)
        except (OSError, ValueError):
            return 0

    def wait_for_step(self, step: int) -> Running:
        deadline = time.monotonic() + PATIENCE_S
        while self.step() < step:
            assert self.process.poll() is None, f"ended before step {step}: {self.process.communicate()[1]}"
            assert time.monotonic() < deadline, f"no step {step} after {PATIENCE_S} s"
            time.sleep(0.002)
        return self

    def wait_for_line(self, word: str) -> Running:
        """Reads stderr up to the line that holds `word`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return self
        raise AssertionError(f"ended without saying {word!r}")

    def send(self, number: signal.Signals) -> Running:
        assert self.process.poll() is None, "ended before the signal"
        self.process.send_signal(number)
        return self

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Ended(self.process.returncode, out, err)


class Trainer:
    """One folder of runs with one feature cache and one profile; the run-id is `run` unless said otherwise."""

    def __init__(self, root: Path, cache: Path, run_id: str = "run"):
        self.root, self.cache, self.run_id = root, cache, run_id
        self.runs = root / "runs"
        root.mkdir(parents=True, exist_ok=True)
        self.profile = root / "tiny.toml"
        self.profile.write_text(PROFILE)

    @property
    def fold(self) -> Path:
        return self.runs / "alpha-rl-runs" / self.run_id / "fold0"

    def copy(self, root: Path) -> Trainer:
        """The same study in another folder, as far as it has come."""
        other = Trainer(root, self.cache, self.run_id)
        shutil.copytree(self.runs, other.runs)
        return other

    def start(self, command: str, *words: str, limit_bytes: int = 0, **environment: str) -> Running:
        """`limit_bytes` is the largest file that the process may write."""
        place = ["--run-id", self.run_id, "--runs", str(self.runs), "--cache", str(self.cache)]
        config = ["--config", str(self.profile)]
        extra = {"precompute": [*place, *config], "train": [*place, *config], "evaluate": place}.get(command, [])
        progress = self.root / "progress"
        progress.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer", command, *extra, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPO,
            env=os.environ | {"ARGO_PROGRESS_FILE": str(progress)} | environment,
            preexec_fn=lambda: _as_from_a_terminal(limit_bytes),
        )
        return Running(process, progress)

    def run(self, command: str, *words: str, **environment: str) -> Ended:
        return self.start(command, *words, **environment).end()

    def train(self, *words: str) -> Ended:
        return self.run("train", "--fold", "0", "--no-evaluate", *words)

    def start_training(self, *words: str, limit_bytes: int = 0) -> Running:
        return self.start("train", "--fold", "0", "--no-evaluate", *words, limit_bytes=limit_bytes)

    def newest(self) -> Path:
        return list_checkpoints(self.fold)[0]

    def inspect(self, path: Path) -> dict:
        return json.loads(self.run("inspect", str(path), "--json").succeeds().out)

    def state(self) -> str:
        """Hash of the newest checkpoint's arrays, by `inspect`."""
        return self.inspect(self.newest())["state"]

    def ledger(self) -> list[dict]:
        return [json.loads(line) for line in (self.fold / "attempts.jsonl").read_text().splitlines()]


def _as_from_a_terminal(largest: int) -> None:
    """In the child: Ctrl-C is heard (a shell's background jobs ignore it), and files may have a largest size."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
