"""Times cuBLASLt's algorithms for every matrix product of a training step on this card, and pins the fastest.

    python -m benchmarks.gemms seed small
    python -m benchmarks.gemms --prune seed small     # times nothing, needs no GPU

Writes trainer/device/products/sm<capability>-cublaslt<version>.json, which runs on such cards read. A product is in it
only where some algorithm beats the library's first choice by more than the noise and gives the same bits at every call.
--prune drops from every such file the products that no step of these profiles asks for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.bench import make_recipe
from trainer.config import StudyConfig, load_config
from trainer.device.cuda import CudaDevice
from trainer.device.gemm import ALIGN, TABLES, Plan, Product, alignment
from trainer.device.launches import DryDevice
from trainer.device.probe import why_unavailable
from trainer.errors import FoxhuntError, UsageError

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


class Asked(DryDevice):
    """Runs nothing, and notes the products that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[Product] = set()

    def gemm(
        self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> None:
        addresses = (array.ctypes.data for array in (a, b, out, bias) if array is not None)
        product = Product.of(a, b, out, ta=ta, tb=tb, beta=beta, bias=bias)
        self.products.add(product._replace(align=alignment(*addresses)))


def products(cfg: StudyConfig) -> set[Product]:
    """Those of a learning step and of one that only collects. Arrays lie as on a GPU; those of validation are left out,
    because their number of rows is the market's."""
    device = Asked()
    recipe = make_recipe(cfg, device)
    recipe.collect_region.body()
    recipe.learn_region.body()
    return {product for product in device.products if product.align == ALIGN}


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


def read(table: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(table.read_text())) if table.exists() else {}


def write(table: Path, found: dict[str, dict[str, Any]]) -> None:
    table.parent.mkdir(exist_ok=True)
    table.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def unused(found: dict[str, dict[str, Any]], wanted: Iterable[Product]) -> list[str]:
    """Names of entries that none of these products reads."""
    return sorted(found.keys() - set(map(str, wanted)))


def prune(wanted: set[Product]) -> None:
    for table in sorted(TABLES.glob("*.json")):
        found = read(table)
        dropped = unused(found, wanted)
        write(table, {name: entry for name, entry in found.items() if name not in dropped})
        print(f"{table.name}: {len(dropped)} of {len(found)} products dropped", *dropped, sep="\n  ")


def pin(wanted: set[Product]) -> None:
    device = CudaDevice(graphs=False)
    table = device.gemms.table
    kept = {name: entry for name, entry in read(table).items() if name not in map(str, wanted)}
    write(table, kept | dict(entries(device, sorted(wanted))))
    print(f"written: {table}")
    if kept:
        print(f"kept, though these profiles do not ask for them (--prune drops them): {', '.join(sorted(kept))}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="+", help="names of profiles, or paths of TOML files")
    parser.add_argument("--prune", action="store_true", help="only drop the products that none of them asks for")
    args = parser.parse_args(argv)
    try:
        configs = [load_config(profile) for profile in args.profiles]
        if not args.prune and (reason := why_unavailable()) is not None:
            raise UsageError(f"no GPU to time on: {reason}")
    except FoxhuntError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    wanted = set[Product]().union(*map(products, configs))
    prune(wanted) if args.prune else pin(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
