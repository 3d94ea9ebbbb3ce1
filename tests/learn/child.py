"""Trains the tiny study in a process of its own: python -m tests.learn.child DEVICE FOLDER STEPS EVERY VALIDATE [HALT]

Its stem is folded. Prints how it ended as one JSON line. With HALT it stands still at that step, once the checkpoint
before it is written, says so, and waits to be killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.recipes.test_alpha_rl import TINY
from tests.recipes.tiny import with_stem
from trainer.config import RunConfig, build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import open_device
from trainer.learn.checkpoint import checkpoint_path
from trainer.learn.loop import train
from trainer.logs import configure_logs
from trainer.recipes.alpha_rl import AlphaRL

REPO = Path(__file__).resolve().parents[2]
HALTED = "halted"
PATIENCE_S = 120


def start(device: str, folder: Path, steps: int, every: int, validate: int, halt: int = 0) -> subprocess.Popen[str]:
    words = [device, folder, steps, every, validate, *([halt] if halt else [])]
    command = [sys.executable, "-m", "tests.learn.child", *map(str, words)]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the process said last: its step, attempt and state hash."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return dict(json.loads(out.splitlines()[-1]))


def kill_when_halted(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    process.kill()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert said == HALTED, err


def main(device: str, folder: str, steps: str, every: str, validate: str, halt: str = "0") -> None:
    configure_logs()  # to stderr
    cfg = build_config(with_stem(TINY, "folded"))
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    run = RunConfig(
        n_steps=int(steps), checkpoint_every=int(every), metrics_every=int(every), validate_every=int(validate)
    )
    kept = checkpoint_path(Path(folder), int(halt) // int(every) * int(every))

    class Halting(AlphaRL):
        def step(self) -> None:
            super().step()
            if self.steps == int(halt):
                while not kept.exists():
                    time.sleep(0.01)
                print(HALTED, flush=True)
                time.sleep(PATIENCE_S)

    def build() -> AlphaRL:
        return Halting(open_device(device), cfg, market, fold)

    _, outcome = train(build, run, Path(folder), 0, {}, quiet=True)
    print(json.dumps({"step": outcome.step, "attempt": outcome.attempt, "state": outcome.state_hash}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
