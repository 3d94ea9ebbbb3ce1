"""What this machine offers to a study."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(folds: int) -> int:
    """How many of `folds` equal, single-threaded trainings to run at once, so that the last one ends soonest.

    One a core, and what would be left over for a last, half-empty round joins the first: three folds on two cores take
    1.5 times one fold's time together, and twice that time as two and one.
    """
    n = cores()
    return folds if folds <= n else n + folds % n


def gpus() -> list[str]:
    """Devices that CUDA may use here, as CUDA_VISIBLE_DEVICES names them; none without cupy."""
    if not importlib.util.find_spec("cupy"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    return sorted(p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*"))


def hardware() -> str:
    """In a few words."""
    found = len(gpus())
    return f"{cores()} cores" + (f", {found} GPU{'s' if found > 1 else ''}" if found else "")
