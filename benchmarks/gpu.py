"""Everything a GPU has to show, in one go: `make gpu`.

    python -m benchmarks.gpu [--out DIR] [--only NAME ...]

Compiles every kernel (registers, spills), runs the GPU tests, times the step at both sizes and against PyTorch and JAX
where they are installed (pip install 'foxhunt[peers]'). Each part runs in a process of its own; what it prints goes to
the screen and to DIR/NAME.txt.
Exit code 1 when a part failed. Ten minutes on one H200, half of it compilers of the peers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers import contest
from trainer.device.probe import why_unavailable

PARTS = {
    "kernels": ("trainer", "bench", "--kernels", "--config", "seed"),
    "tests": ("pytest", "-m", "gpu", "-s", "--durations=10", "tests"),
    "seed": ("trainer", "bench", "--config", "seed", "--device", "cuda"),
    "small": ("trainer", "bench", "--config", "small", "--device", "cuda", "--cold"),
    "peers": ("benchmarks.peers", "--profile", "seed", "--profile", "small"),
}


def no_peer() -> bool:
    """Whether there is nothing to be measured against; a peer that is missing beside another is left out by itself."""
    return all(contest.missing(kind, "cuda") for kind in ("torch", "jax"))


def run(name: str, out: Path) -> tuple[int, float]:
    """Runs one part -> (exit code, seconds)."""
    words = [sys.executable, "-m", *PARTS[name]]
    if name == "peers":
        words += ["--out", str(out / "peers.json")]
    print(f"\n== {name}: {' '.join(words[1:])}", flush=True)
    began = time.perf_counter()
    with (out / f"{name}.txt").open("w") as file:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
    return process.wait(), time.perf_counter() - began


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
    return int(any(code for code, _ in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
