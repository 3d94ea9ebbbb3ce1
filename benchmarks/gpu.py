"""Everything a GPU has to show, in one go: `make gpu`.

    python -m benchmarks.gpu [--out DIR] [--only NAME ...]

Compiles every kernel (registers, spills), runs the GPU tests, times the step at both sizes, trains and judges one fold
at the seed size, and times the step against PyTorch and JAX where they are installed (pip install 'foxhunt[peers]').
Each part runs in processes of its own; what it prints goes to the screen and to DIR/NAME.txt. At the end the figures
are set against the floors and aims.
Exit code 1 when a part failed. A quarter of an hour on one H200, most of it the peers' compilers and the fold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from benchmarks.peers import contest
from trainer.device.probe import architecture, why_unavailable

PARTS = ("kernels", "tests", "seed", "small", "fold", "peers")
FOLD_STEPS = 25_000
DATA = "synthetic:signal=0.75"


def commands(name: str, out: Path, runs: Path) -> list[list[str]]:
    """What a part runs, one after the other; `runs` is a folder that goes afterwards."""
    figures = ["--out", str(out / f"{name}.json")]
    if name == "kernels":
        return [["trainer", "bench", "--kernels", "--config", "seed", "--arch", architecture()]]
    if name == "tests":
        return [["pytest", "-m", "gpu", "-s", "--durations=10", "tests"]]
    if name == "fold":
        place = ["--run-id", "fold", "--runs", str(runs), "--cache", str(runs / "cache"), "--config", "seed"]
        place += ["--set", f"run.n_steps={FOLD_STEPS}; run.metrics_every=1000"]  # 25 lines on the screen, not 500
        train = ["trainer", "train", *place, "--fold", "0", "--device", "cuda"]
        return [["trainer", "precompute", *place, "--data", DATA, "--folds", "3"], train]
    if name == "peers":
        return [["benchmarks.peers", "--profile", "seed", "--profile", "small", *figures]]
    cold = ["--cold"] if name == "small" else []
    return [["trainer", "bench", "--config", name, "--device", "cuda", *cold, *figures]]


def no_peer() -> bool:
    """Whether there is nothing to be measured against; a peer that is missing beside another is left out by itself."""
    return all(contest.missing(kind, "cuda") for kind in ("torch", "jax"))


def run(name: str, out: Path) -> tuple[int, float]:
    """Runs one part -> (exit code, seconds)."""
    figures, began, code = out / f"{name}.json", time.perf_counter(), 0
    figures.unlink(missing_ok=True)  # an earlier run's are not this one's
    with (out / f"{name}.txt").open("w") as file, tempfile.TemporaryDirectory(prefix="runs-", dir=out) as runs:
        for words in commands(name, out, Path(runs)):
            print(f"\n== {name}: {' '.join(words)}", flush=True)
            code, seconds = stream(words, file)
            print(f"-- {seconds:.1f} s", flush=True)
            if code:
                break
    if name == "fold" and not code:
        figures.write_text(json.dumps({"train_s": seconds}) + "\n")
    return code, time.perf_counter() - began


def stream(words: list[str], file: TextIO) -> tuple[int, float]:
    """Runs a module with its arguments; what it prints goes to the screen and to `file` -> (exit code, seconds)."""
    began = time.perf_counter()
    words = [sys.executable, "-m", *words]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        file.write(line)
    return process.wait(), time.perf_counter() - began


# -- what was measured, and what was wanted --


class Aim(NamedTuple):
    what: str
    part: str  # whose JSON has the figure
    figure: Callable[[Any], float | None]
    floor: float  # at least to be reached: from below where the aim is above it, else from above
    aim: float

    def verdict(self, value: float) -> str:
        sign = 1 if self.aim > self.floor else -1
        if sign * value >= sign * self.aim:
            return "aim reached"
        return "floor reached, aim missed" if sign * value >= sign * self.floor else "floor missed"


def over_torch(results: list[dict[str, Any]]) -> float | None:
    """foxhunt's rate at the seed size over that of the fastest PyTorch there."""
    measured = next((result["contestants"] for result in results if result["profile"] == "seed"), {})
    return min((x["ratio"] for kind, x in measured.items() if kind.startswith("torch") and "ratio" in x), default=None)


def first_step(found: dict[str, Any]) -> float:
    return float(found["start"]["warm"]["first_captured_step_s"])


AIMS = (
    Aim("seed size, steps/s", "seed", lambda found: found["steps_per_s"], 150, 300),
    Aim("small size, steps/s", "small", lambda found: found["steps_per_s"], 300, 1000),
    Aim("seed size over the best PyTorch peer", "peers", over_torch, 2, 4),
    Aim("training stalled by a checkpoint, ms", "seed", lambda found: found["checkpoint_stall_ms"], 5, 1),
    Aim(f"a fold of {FOLD_STEPS:,} steps, judged, s", "fold", lambda found: found["train_s"], 170, 85),
    Aim("start to the first captured step, s", "seed", first_step, 20, 8),
)


def closing(out: Path, parts: Iterable[str]) -> list[str]:
    """A table of what these parts measured, beside floors and aims."""
    lines = [f"{'':40}{'measured':>10}{'floor':>7}{'aim':>7}"]
    for aim in AIMS:
        path = out / f"{aim.part}.json"
        value = aim.figure(json.loads(path.read_text())) if aim.part in parts and path.exists() else None
        shown, verdict = ("-", "not measured") if value is None else (f"{value:,.2f}", aim.verdict(value))
        lines.append(f"{aim.what:40}{shown:>10}{aim.floor:7g}{aim.aim:7g}   {verdict}")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of what is printed [runs/gpu]")
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable [all]")
    args = parser.parse_args(argv)
    reason = why_unavailable()
    if reason is not None:  # or the tests would be skipped, and that would read as done
        print(f"error: {reason}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = list(args.only or PARTS)
    skipped = [name for name in chosen if name == "peers" and no_peer()]
    ended = {name: run(name, args.out) for name in chosen if name not in skipped}
    print()
    for name in skipped:
        print(f"{name:8} not installed: skipped   (pip install 'foxhunt[peers]' for PyTorch and JAX)")
    for name, (code, seconds) in ended.items():
        end = f"FAILED, exit code {code}" if code else "done"
        print(f"{name:8} {end:24} {seconds:6.0f} s   {args.out / name}.txt")
    print("", *closing(args.out, ended), sep="\n")
    return int(any(code for code, _ in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
