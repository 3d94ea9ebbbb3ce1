"""Rows a second of the synthetic market, of the features and of a whole precompute, on one core.

    python -m benchmarks.features [--rows 400000] [--repeat 3] [--json]

The best of `repeat` runs counts: other work on the machine only ever adds time. Compilation and imports are not in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

import structlog


def best(run: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of `repeat` runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(rows: int, repeat: int) -> dict[str, float]:
    """Rows a second by stage."""
    from trainer.config import load_config
    from trainer.data.features import FeatureStream
    from trainer.data.fxcache import find_or_build
    from trainer.data.synthetic import SyntheticConfig, SyntheticSeries

    series = SyntheticSeries(SyntheticConfig(rows=rows))
    frames = list(series.chunks())
    FeatureStream(10).push(frames[0])  # compiles

    def features() -> None:
        stream = FeatureStream(10)
        for frame in frames:
            stream.push(frame)

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            find_or_build(series, load_config("cpu-demo").data, folder)

    return {
        "synthetic_rows_per_s": rows / best(lambda: sum(len(f) for f in series.chunks()), repeat),
        "features_rows_per_s": rows / best(features, repeat),
        "fxcache_build_rows_per_s": rows / best(build, repeat),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the series")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    result = measure(args.rows, args.repeat)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28s} {value:12,.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
