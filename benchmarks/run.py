"""`make bench`: every CPU figure of this machine in one table, and as JSON.

    python -m benchmarks.run [--json FILE]

Each part runs in a process of its own with one BLAS thread. Run it on a quiet machine: the figures are wall-clock.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKFLOWS = ("submit", "render", "list", "watch", "gc")
COMMANDS = ("trainer", "trainer train", *(f"workflows.{name}" for name in WORKFLOWS))
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def call(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def seconds(*words: str, repeat: int = 5) -> float:
    """Median wall-clock of a whole process."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        call(*words)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def figures() -> dict[str, Any]:
    return {
        "replay": json.loads(call("-m", "benchmarks.replay", "--json").splitlines()[-1]),
        "features": json.loads(call("-m", "benchmarks.features", "--json").splitlines()[-1]),
        "step": json.loads(call("-m", "trainer", "bench", "--json")),
        "help_s": {name: round(seconds("-m", *name.split(), "--help"), 3) for name in COMMANDS},
        "render_s": round(seconds("-m", "workflows.render", "--check", repeat=3), 3),
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.processor())


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Figures by dotted name; lists (a step's operations) are for the JSON alone."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            out[prefix + key] = value
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    found = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **figures(),
    }
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for key, value in flat(found).items():
        print(f"{key:44} {value:,.3f}" if isinstance(value, float) else f"{key:44} {value}")


if __name__ == "__main__":
    main()
