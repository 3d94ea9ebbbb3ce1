"""`python -m trainer bench`: what a training step costs on this machine, and what it goes to.

The rate is that of steps as they run in training. Where a step goes is measured apart, in steps whose operations run
one after the other with a mark between them: branches that overlap in training don't here, so the sum is above a step.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import structlog

from trainer.config import StudyConfig
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import Region, open_device, probe
from trainer.device.base import Device
from trainer.device.gemm import Product
from trainer.device.launches import DryDevice, limit_of
from trainer.errors import FoxhuntError
from trainer.files import write_text
from trainer.learn.checkpoint import CheckpointWriter, list_checkpoints
from trainer.recipes.alpha_rl import AlphaRL

WARMUP = 50
TRACED = 20  # steps whose operations are timed one by one; the first ones load what is only used then
TRACE_WARMUP = 3
SAVES, BETWEEN = 7, 50  # checkpoints, and steps after each
OPERATIONS = ("launch", "gemm", "copy", "zero")
DATA = "synthetic:rows=40000"
WIDTH = 160
SHOWN = 24  # rows of a table on the screen; the JSON has all

log = structlog.get_logger()


def make_recipe(cfg: StudyConfig, device: Device | None = None) -> AlphaRL:
    """The recipe on the synthetic market, not yet stepped; on the device that the settings name if none is given."""
    market = synthetic_market(DATA)
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    return AlphaRL(device or open_device(cfg.run.device, cfg.run.tf32), cfg, market, fold)


def warm_up(recipe: AlphaRL, steps: int = WARMUP) -> None:
    """Steps until learning has gone on for `steps` steps, so all that is captured is."""
    while recipe.learn_region.calls < steps:
        recipe.step()
    recipe.device.synchronize()


def announce(device: Device, cfg: StudyConfig, steps: int) -> None:
    """What is timed and where, before it takes its time: large settings take minutes on a processor."""
    sizes = {"n_backtests": cfg.env.n_backtests, "batch": cfg.learn.batch, "d_model": cfg.net.d_model}
    chosen = {} if device.name != "cpu" or cfg.run.device == "cpu" else {"no_gpu": probe.why_unavailable()}
    log.info("timing", config=cfg.profile, device=device.model, **chosen, **sizes, warm_up=WARMUP, steps=steps)


def measure(cfg: StudyConfig, steps: int, cold: bool = False) -> dict[str, Any]:
    """Figures of `steps` learning steps on the synthetic market, after a warm-up; times in milliseconds."""
    device = open_device(cfg.run.device, cfg.run.tf32)
    announce(device, cfg, steps)
    recipe = make_recipe(cfg, device)
    warm_up(recipe)
    figures: dict[str, Any] = {
        "device": device.model,
        "profile": cfg.profile,
        "steps": steps,
        **_rate(recipe, steps),
        "regions": _regions(recipe, steps),
    }
    figures |= _operations(recipe, min(steps, TRACED), figures["step_ms"])
    figures |= _checkpoint(recipe, figures["step_ms"])
    figures["memory_mib"] = _memory(recipe)
    figures["start"] = {"warm": start(cfg), **({"cold": cold_start(cfg)} if cold else {})}
    return figures


def _rate(recipe: AlphaRL, steps: int) -> dict[str, float]:
    device = recipe.device
    started = time.perf_counter()
    for _ in range(steps):
        recipe.step()
    device.synchronize()
    seconds = time.perf_counter() - started
    each = []  # one by one: on a GPU this waits for each step, so it is not the rate
    for _ in range(steps):
        started = time.perf_counter()
        recipe.step()
        device.synchronize()
        each.append(1e3 * (time.perf_counter() - started))
    return {
        "steps_per_s": steps / seconds,
        "env_steps_per_s": steps / seconds * recipe.env_steps,
        "updates_per_s": steps / seconds,
        "step_ms": 1e3 * seconds / steps,
        "step_ms_median_one_by_one": statistics.median(each),
        "step_ms_p95_one_by_one": sorted(each)[int(0.95 * steps)],
    }


# -- where a step goes --


@contextmanager
def _replaced(recipe: AlphaRL, wrap: Callable[[Region], Callable[[], None]]) -> Iterator[None]:
    """The recipe calls `wrap(region)` in place of each of its regions."""
    kept = {name: value for name, value in vars(recipe).items() if isinstance(value, Region)}
    for name, region in kept.items():
        setattr(recipe, name, wrap(region))
    try:
        yield
    finally:
        vars(recipe).update(kept)


def _regions(recipe: AlphaRL, steps: int) -> dict[str, dict[str, float]]:
    """Time of each region as training runs it (captured on a GPU), calls, and nodes of its graph."""
    watch, marks = recipe.device.stopwatch(), defaultdict[str, list[tuple[Any, Any]]](list)

    def wrap(region: Region) -> Callable[[], None]:
        def run() -> None:
            first = watch.mark()
            region()
            marks[region.name].append((first, watch.mark()))

        return run

    with _replaced(recipe, wrap):
        for _ in range(steps):
            recipe.step()
    recipe.device.synchronize()
    found = {}
    for name, pairs in marks.items():
        found[name] = {
            "calls_per_step": len(pairs) / steps,
            "ms_per_call": statistics.median(watch.ms(*pair) for pair in pairs),
        }
    for region in (value for value in vars(recipe).values() if isinstance(value, Region)):
        if region.name in found and hasattr(region.graph, "nodes"):
            found[region.name]["graph_nodes"] = region.graph.nodes()
    return found


class Tracer:
    """Runs regions eagerly with a mark after each operation; sums by (region, branch, operation)."""

    def __init__(self, device: Device):
        self.device, self.watch = device, device.stopwatch()
        self.clear()

    def clear(self) -> None:
        self.ms: dict[tuple[str, str, str], float] = defaultdict(float)
        self.calls: dict[tuple[str, str, str], int] = defaultdict(int)

    def run(self, region: Region) -> None:
        marks: list[tuple[tuple[str, str, str], Any]] = []
        with self._marking(region.name, marks), self.watch.held():
            marks.append((("", "", ""), self.watch.mark()))
            region.eager()
        self.device.synchronize()
        for (_, before), (key, after) in pairwise(marks):
            self.ms[key] += self.watch.ms(before, after)
            self.calls[key] += 1

    @contextmanager
    def _marking(self, region: str, marks: list[Any]) -> Iterator[None]:
        """The device's vocabulary with a mark after each word; branches in order, on one time line."""
        device, place = self.device, [""]

        def marked(name: str, call: Callable[..., None]) -> Callable[..., None]:
            def run(*values: Any, **options: Any) -> None:
                call(*values, **options)
                marks.append(((region, place[0], _label(name, values, options)), self.watch.mark()))

            return run

        @contextmanager
        def branch(name: str, urgent: bool = False) -> Iterator[None]:
            outer, place[0] = place[0], name
            yield
            place[0] = outer

        words: dict[str, Any] = {name: marked(name, getattr(device, name)) for name in OPERATIONS}
        before = dict(vars(device))
        vars(device).update(words | {"branch": branch})
        try:
            yield
        finally:
            for name in (*words, "branch"):
                delattr(device, name)
            vars(device).update({name: before[name] for name in words if name in before})


def _label(name: str, values: tuple[Any, ...], options: dict[str, Any]) -> str:
    if name == "launch":
        return str(values[0].name)
    if name == "gemm":
        return f"gemm {Product.of(*values, **options)}"
    return name


def _operations(recipe: AlphaRL, steps: int, step_ms: float) -> dict[str, Any]:
    """Milliseconds a step by region, branch and operation; `gemm_share_of_step` is the figure to watch."""
    tracer = Tracer(recipe.device)
    with _replaced(recipe, lambda region: lambda: tracer.run(region)):
        for i in range(TRACE_WARMUP + steps):
            if i == TRACE_WARMUP:
                tracer.clear()
            recipe.step()
    rows: list[dict[str, Any]] = [
        {"region": region, "branch": branch, "operation": name, "calls": tracer.calls[key] / steps, "ms": ms / steps}
        for key, ms in sorted(tracer.ms.items(), key=lambda item: -item[1])
        for region, branch, name in [key]
    ]
    total = sum(row["ms"] for row in rows)
    gemm = sum(row["ms"] for row in rows if row["operation"].startswith("gemm "))
    return {
        "operations": rows,
        "operations_ms": total,
        "gemm_ms": gemm,
        "gemm_share_of_operations": gemm / total,
        "gemm_share_of_step": gemm / step_ms,
    }


# -- checkpoint, memory, start --


def _checkpoint(recipe: AlphaRL, step_ms: float) -> dict[str, float]:
    """Checkpoints while training goes on. Stall: what the device's time line loses to the copy. Hand-over: what the
    host does. Cost: how much later the next steps end than without, the background write beside them included."""
    device, watch = recipe.device, recipe.device.stopwatch()
    stalls, handed, costs, writes = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="foxhunt-bench-") as folder:
        writer = CheckpointWriter(Path(folder), {})
        for _ in range(SAVES):
            recipe.step()
            started, first = time.perf_counter(), watch.mark()
            arrays = recipe.freeze()
            last = watch.mark()
            writer.submit(recipe.step_count, arrays)
            handed.append(1e3 * (time.perf_counter() - started))
            for _ in range(BETWEEN):
                recipe.step()
            device.synchronize()
            costs.append(1e3 * (time.perf_counter() - started) - (BETWEEN + 1) * step_ms)
            stalls.append(watch.ms(first, last))
            writer.drain()
            writes.append(1e3 * (time.perf_counter() - started))
        writer.close()
        size = list_checkpoints(Path(folder))[0].stat().st_size
    return {
        "checkpoint_stall_ms": statistics.median(stalls),
        "checkpoint_hand_over_ms": statistics.median(handed),
        "checkpoint_cost_ms": statistics.median(costs),
        "checkpoint_written_after_ms": statistics.median(writes),
        "checkpoint_mib": size / 2**20,
    }


def _memory(recipe: AlphaRL) -> dict[str, Any]:
    """MiB: peak of the host process, of the device by what it is, and of the run's arrays by arena."""
    found: dict[str, Any] = {"host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    found |= {name: size / 2**20 for name, size in recipe.device.memory().items()}
    return found | {"arenas": {name: size / 2**20 for name, size in recipe.arenas().items()}}


def start(cfg: StudyConfig, **environment: str) -> dict[str, float]:
    """From the start of a fresh process to the end of its first captured learning step, in seconds."""
    words = [sys.executable, "-c", "from trainer.bench import tell_start; tell_start()", str(time.monotonic())]
    done = subprocess.run(
        words, input=cfg.model_dump_json(), capture_output=True, text=True, env=os.environ | environment
    )
    if done.returncode:
        raise FoxhuntError(f"the process that measures the start ended with {done.returncode}\n{done.stderr.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def cold_start(cfg: StudyConfig) -> dict[str, float]:
    """The same where no kernel was ever compiled."""
    with tempfile.TemporaryDirectory(prefix="foxhunt-kernels-") as folder:
        return start(cfg, CUPY_CACHE_DIR=folder)


def tell_start() -> None:
    """The child of `start`: argument 1 is when it was started (monotonic seconds), stdin the config; prints JSON."""
    started = float(sys.argv[1])
    found = {"imported_s": time.monotonic() - started}
    recipe = make_recipe(StudyConfig.model_validate_json(sys.stdin.read()))
    found["allocated_s"] = time.monotonic() - started
    warm_up(recipe, Region.WARMUP + 1)
    found["first_captured_step_s"] = time.monotonic() - started
    found["compile_s"], found["functions"] = recipe.device.compile_seconds, recipe.device.compiled
    print(json.dumps(found))


# -- kernels as the compiler sees them --


def launches(cfg: StudyConfig, limit: int | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """What each CUDA function of a training and a validation step is launched with, where a block gets `limit` bytes of
    shared memory; variants left out for it as well. Needs no GPU and little memory."""
    device = DryDevice(limit)
    device.tf32 = cfg.run.tf32
    recipe = make_recipe(cfg, device)
    device.launches.clear()  # what making it launched
    owners = [recipe, *([recipe.validator] if recipe.validator else [])]
    for region in (value for owner in owners for value in vars(owner).values() if isinstance(value, Region)):
        region.body()
    return device.launches


def kernel_resources(cfg: StudyConfig, arch: str) -> list[dict[str, Any]]:
    """Registers, stack, spills and shared memory of every CUDA function, compiled for `arch` ("sm_90"), and what it is
    launched with under these settings. `use`: "launched", or "exceeds" where `arch` has not enough shared memory.

    Needs cupy and NVRTC, no GPU. Raises UsageError without them, or when NVRTC does not know `arch`.
    """
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import asdict

    from trainer.device import source

    source.require_arch(arch)
    launched = launches(cfg, limit_of(arch))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # NVRTC compiles without the interpreter's lock
        found = pool.map(lambda kernel: source.resources(kernel, arch), source.all_kernels())
        return [asdict(row) | launched.get((row.kernel, row.entry), {}) for rows in found for row in rows]


# -- the command --


def bench(cfg: StudyConfig, steps: int, as_json: bool, cold: bool = False, out: Path | None = None) -> None:
    """Prints the figures; `out`: they are also written there, as JSON."""
    figures = measure(cfg, steps, cold)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures)) if as_json else show(figures)


def bench_kernels(cfg: StudyConfig, arch: str, as_json: bool) -> None:
    rows = kernel_resources(cfg, arch)
    if as_json:
        print(json.dumps(rows))
        return
    compiled = ("registers", "stack", "spill_stores", "spill_loads", "shared")
    title = f"kernels for {arch}, launched as by {cfg.profile}; stack and spills: bytes a thread, shared: bytes a block"
    _table(title, ("kernel", "entry", *compiled, "dynamic", "grid", "block", "use"), rows)
    print(verdict(rows, arch))


def verdict(rows: list[dict[str, Any]], arch: str) -> str:
    """What the shared memory of `arch` means for these launches."""
    limit = limit_of(arch)
    if limit is None:
        return f"how much shared memory a block gets on {arch} is not known here: taken as enough"
    has = f"{arch} has {limit >> 10} KiB of shared memory for a block"
    over = [row for row in rows if row.get("use") == "exceeds"]
    if not over:
        return f"{has}: enough for every launch"
    lines = [f"{has}:"]
    for kernel in sorted({row["kernel"] for row in over}):
        asked = max(row["dynamic"] for row in over if row["kernel"] == kernel)
        instead = [row["entry"] for row in rows if row["kernel"] == kernel and row.get("use") == "launched"]
        then = f"{', '.join(instead)} runs, which is slower" if instead else "it can't run: take a smaller net"
        lines.append(f"  {kernel} asks for {asked / 1024:.1f} KiB; {then}")
    return "\n".join(lines)


def show(figures: dict[str, Any]) -> None:
    title = f"trainer bench, {figures['profile']} on {figures['device']}"
    _table(title, ("figure", "value"), [{"figure": name, "value": value} for name, value in _scalars(figures)])
    arenas = figures["memory_mib"]["arenas"].items()
    _table("memory by arena", ("arena", "MiB"), [{"arena": name, "MiB": size} for name, size in arenas])
    regions = [{"region": name, **row} for name, row in figures["regions"].items()]
    _table("regions as training runs them", ("region", "calls_per_step", "ms_per_call", "graph_nodes"), regions)
    kernels = by_kernel(figures["operations"])
    branches = sorted({row["branch"] for row in figures["operations"] if row["branch"]})
    columns = ("kernel", "calls", "ms", "share", *branches, "else")
    _table("where a step goes, operations one after the other: milliseconds", columns, kernels)
    columns = ("product", "calls", "ms", "tflops")
    title = "matrix products, rows x columns x depth; ta, tb: that factor transposed"
    _table(title, columns, by_product(figures["operations"]))


def by_kernel(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a kernel with its milliseconds a step in each branch; all matrix products are one."""
    rows: dict[str, dict[str, Any]] = {}
    total = sum(row["ms"] for row in operations)
    for each in operations:
        name = each["operation"].partition(" ")[0]
        row = rows.setdefault(name, defaultdict(float, kernel=name))
        for column in ("ms", each["branch"] or "else"):
            row[column] += each["ms"]
        row["calls"] += each["calls"]
        row["share"] = row["ms"] / total
    return sorted(rows.values(), key=lambda row: -row["ms"])


def by_product(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a matrix product by shape and kind: all of its calls, and the rate they ran at."""
    rows: dict[str, dict[str, Any]] = {}
    for each in operations:
        name, _, product = each["operation"].partition(" ")
        if name != "gemm":
            continue
        row = rows.setdefault(product, defaultdict(float, product=product))
        row["calls"] += each["calls"]
        row["ms"] += each["ms"]
        work = 2.0 * prod(int(n) for n in product.split()[0].split("x"))
        row["tflops"] = work * row["calls"] / row["ms"] / 1e9
    return sorted(rows.values(), key=lambda row: -row["ms"])


def _scalars(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers by dotted name, but for those that have tables of their own."""
    for name, value in tree.items():
        if isinstance(value, dict):
            if name not in ("regions", "arenas"):
                yield from _scalars(value, f"{prefix}{name}.")
        elif not isinstance(value, (list, str)):
            yield prefix + name, value


def _table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    hidden = len(rows) - SHOWN if len(rows) > SHOWN + 1 and "entry" not in columns else 0
    table = Table(title=title, title_justify="left", caption=f"{hidden} smaller ones in --json" if hidden else None)
    for i, name in enumerate(columns):
        left = i == 0 or name == "entry"
        table.add_column(name.replace("_", " "), justify="left" if left else "right", no_wrap=left)
    for row in rows[: len(rows) - hidden]:
        table.add_row(*(_cell(name, row[name]) if name in row else "" for name in columns))
    # A file or a pipe has no width of its own; names cut short would be no names.
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


def _cell(name: str, value: Any) -> str:
    if name == "share":
        return f"{value:.1%}"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
