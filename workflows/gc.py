"""Removes old runs; the newest ones and whatever is at work stay.

python -m workflows.gc                              shows what would go
python -m workflows.gc --older-than-days 14 --yes   removes it
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from workflows import state
from workflows.cli import DEFAULT_RUNS, Runs, run_command


def main(
    older_than_days: Annotated[float, typer.Option(min=0.0, help="runs untouched for this long")] = 30.0,
    keep: Annotated[int, typer.Option(min=0, help="newest runs that stay whatever their age")] = 3,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="remove checkpoints alone, keep results")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="remove; without it only show")] = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Remove old runs, or the checkpoints of them. Shows what would go unless --yes is given.

    Example: python -m workflows.gc --older-than-days 14 --checkpoints --yes
    """
    total = 0
    for folder in old_runs(runs, older_than_days, keep):
        files = sorted(folder.glob("fold*/checkpoint-*.bin")) if checkpoints else [folder]
        size = sum(size_of(path) for path in files)
        if not size:
            continue
        total += size
        print(f"{'removed' if yes else 'would remove'}  {size / 2**20:8.1f} MiB  {folder}")
        for path in files if yes else []:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not total:
        print(f"nothing to remove: no run beyond the newest {keep} was left alone for {older_than_days:g} days")
        return
    print(f"{total / 2**20:.1f} MiB" + ("" if yes else "; add --yes to remove"))


def old_runs(runs: Path, days: float, keep: int) -> list[Path]:
    """Runs beyond the newest `keep`, older than `days` and not at work."""
    before = time.time() - days * 86400
    folders = list(state.all_runs(runs))[keep:]
    return [f for f in folders if (f / state.STATE).stat().st_mtime < before and not state.is_locked(f)]


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(p.stat().st_size for p in files if p.is_file())


if __name__ == "__main__":
    run_command(main)
