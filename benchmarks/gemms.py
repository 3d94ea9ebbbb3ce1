"""Times cuBLASLt's algorithms for every matrix product of a training step on this card, and pins the fastest.

    python -m benchmarks.gemms seed small

Writes trainer/device/products/sm<capability>-cublaslt<version>.json, which runs on such cards read. A product is in it
only where some algorithm beats the library's first choice by more than the noise and gives the same bits at every call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainer.config import load_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device.cuda import CudaDevice
from trainer.device.gemm import ALIGN, Plan, Product
from trainer.device.probe import why_unavailable
from trainer.errors import FoxhuntError, UsageError
from trainer.recipes.alpha_rl import AlphaRL

CANDIDATES = 32  # asked of the library; it gives fewer
CALLS, ROUNDS = 10, 5  # calls in a graph, launches of it: the median counts
GAIN = 0.02  # of the first choice's time that another must save


class Timed:
    """One product with random operands, launched from a captured graph so that no host time is in the figure."""

    def __init__(self, device: CudaDevice, product: Product):
        p, cp = product, device.cp
        self.device, self.plan = device, Plan(device.gemms, product)
        random = cp.random.default_rng(0)
        shapes = ((p.k, p.m) if p.ta else (p.m, p.k)), ((p.n, p.k) if p.tb else (p.k, p.n)), (p.m, p.n), (p.n,)
        self.a, self.b, self.start, bias = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
        self.bias, self.out = bias if p.bias else None, cp.empty_like(self.start)
        cp.cuda.Device().synchronize()

    def _call(self) -> None:
        branch = self.device.main
        self.plan.run(self.a, self.b, self.out, self.bias, branch.workspace, branch.stream)

    def bits(self) -> bytes:
        self.device.copy(self.out, self.start)
        self._call()
        return self.device.to_host(self.out).tobytes()

    def repeats(self) -> bool:
        return len({self.bits() for _ in range(3)}) == 1

    def microseconds(self) -> float:
        cp, stream = self.device.cp, self.device.main.stream
        self._call()
        with stream:
            stream.begin_capture()
            for _ in range(CALLS):
                self._call()
            graph = stream.end_capture()
        times = []
        for _ in range(ROUNDS):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(1e3 * cp.cuda.get_elapsed_time(begin, end) / CALLS)
        return statistics.median(times)


def products(device: CudaDevice, profile: str) -> list[Product]:
    """Those of a learning step of this profile."""
    cfg = load_config(profile)
    market = synthetic_market("synthetic:rows=40000")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    recipe = AlphaRL(device, cfg, market, fold)
    while not recipe.learn_region.calls:
        recipe.step()
    return sorted(device.gemms.plans)


def search(device: CudaDevice, product: Product) -> tuple[Any, float, float]:
    """(fastest algorithm, its microseconds, those of the library's first choice)."""
    timed = Timed(device, product)
    first, *others = timed.plan.candidates(CANDIDATES)
    found = []
    for words in (first, *others):
        timed.plan.algorithm = words
        found.append((timed.microseconds(), len(found), words))
    us, at, words = min(found)
    timed.plan.algorithm = words
    if at and (us > (1 - GAIN) * found[0][0] or not timed.repeats()):
        us, _, words = found[0]
    return words, us, found[0][0]


def entries(device: CudaDevice, wanted: list[Product]) -> Iterator[tuple[str, dict[str, Any]]]:
    for product in wanted:
        words, us, first = search(device, product)
        print(f"{product!s:28} first {first:7.1f} us, fastest {us:7.1f} us")
        if us < first:
            yield str(product), {"algorithm": words.tobytes().hex(), "us": round(us, 1), "first_us": round(first, 1)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="+", help="names of profiles, or paths of TOML files")
    profiles = parser.parse_args(argv).profiles
    try:
        for profile in profiles:
            load_config(profile)
        if (reason := why_unavailable()) is not None:
            raise UsageError(f"no GPU to time on: {reason}")
    except FoxhuntError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    wanted: set[Product] = set()
    for profile in profiles:
        device = CudaDevice(graphs=False)
        wanted |= {p for p in products(device, profile) if p.align == ALIGN}
    table = device.gemms.table
    kept = json.loads(table.read_text()) if table.exists() else {}
    kept = {name: entry for name, entry in kept.items() if name not in map(str, wanted)}
    table.parent.mkdir(exist_ok=True)
    table.write_text(json.dumps(dict(sorted((kept | dict(entries(device, sorted(wanted)))).items())), indent=1) + "\n")
    print(f"written: {table}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
