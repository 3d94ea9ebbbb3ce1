"""`python -m trainer bench`: what a training step costs on this machine, and which kernels it goes to."""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from trainer.config import StudyConfig
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import open_device
from trainer.device.base import Device
from trainer.learn.checkpoint import checkpoint_path, write_checkpoint
from trainer.recipes.alpha_rl import AlphaRL

WARMUP = 50


class _Clocked:
    """Sums the time of every launch and GEMM of a CPU device by name."""

    def __init__(self, device: Device):
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.device, launch, gemm = device, device.launch, device.gemm

        def timed(name: str, call: Any, *args: Any, **kwargs: Any) -> None:
            started = time.perf_counter()
            call(*args, **kwargs)
            self.seconds[name] += time.perf_counter() - started
            self.calls[name] += 1

        device.launch = lambda k, *v: timed(k.name, launch, k, *v)  # type: ignore[method-assign]
        device.gemm = lambda *a, **k: timed("gemm", gemm, *a, **k)  # type: ignore[method-assign]


def measure(cfg: StudyConfig, steps: int) -> dict[str, Any]:
    """Figures of `steps` learning steps on the synthetic market, after a warm-up; times in milliseconds."""
    market = synthetic_market("synthetic:rows=40000")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    device = open_device(cfg.run.device, cfg.run.tf32)
    recipe = AlphaRL(device, cfg, market, fold)
    while not recipe.boundary.finished or recipe.step_count < recipe.warm_steps + WARMUP:
        recipe.step()
    device.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        recipe.step()
    device.synchronize()
    rate = steps / (time.perf_counter() - started)
    each = []  # one by one: on a GPU this waits for each step, so it is not the rate
    for _ in range(steps):
        started = time.perf_counter()
        recipe.step()
        device.synchronize()
        each.append(time.perf_counter() - started)
    figures: dict[str, Any] = {
        "device": getattr(device, "model", device.name),
        "profile": cfg.profile,
        "steps": steps,
        "steps_per_s": rate,
        "env_steps_per_s": rate * cfg.env.n_backtests,
        "updates_per_s": rate,
        "step_ms_median": 1e3 * statistics.median(each),
        "step_ms_p95": 1e3 * sorted(each)[int(0.95 * steps)],
        "state_mib": recipe.store.nbytes() / 2**20,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    figures |= _checkpoint(recipe)
    if recipe.learn_region.graph is not None:
        figures["graph_nodes"] = recipe.learn_region.graph.nodes()
    if device.name == "cpu":
        figures["kernels_ms_per_step"] = _by_kernel(device, recipe, min(steps, 100))
    return figures


def _checkpoint(recipe: AlphaRL) -> dict[str, float]:
    """Stall: what the training thread waits for (the copy). Write: what the background thread does."""
    stalls, writes = [], []
    with tempfile.TemporaryDirectory(prefix="foxhunt-bench-") as folder:
        for i in range(7):
            started = time.perf_counter()
            arrays = recipe.snapshot()
            stalls.append(time.perf_counter() - started)
            started = time.perf_counter()
            write_checkpoint(checkpoint_path(Path(folder), i), i, arrays, {})
            writes.append(time.perf_counter() - started)
            size = checkpoint_path(Path(folder), i).stat().st_size
    return {
        "checkpoint_stall_ms": 1e3 * statistics.median(stalls),
        "checkpoint_write_ms": 1e3 * statistics.median(writes),
        "checkpoint_mib": size / 2**20,
    }


def _by_kernel(device: Device, recipe: AlphaRL, steps: int) -> dict[str, float]:
    clocked = _Clocked(device)
    for _ in range(steps):
        recipe.step()
    return {k: 1e3 * v / steps for k, v in sorted(clocked.seconds.items(), key=lambda item: -item[1])}


def bench(cfg: StudyConfig, steps: int, as_json: bool) -> None:
    figures = measure(cfg, steps)
    if as_json:
        print(json.dumps(figures))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("figure", "value", title=f"trainer bench, {figures['profile']} on {figures['device']}")
    for name, value in figures.items():
        if isinstance(value, float):
            table.add_row(name, f"{value:,.2f}")
    console.print(table)
    kernels = Table("kernel", "ms a step", title="where a step goes (NumPy references)")
    for name, value in figures.get("kernels_ms_per_step", {}).items():
        kernels.add_row(name, f"{value:.3f}")
    console.print(kernels)
