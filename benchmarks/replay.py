"""Events a second of the order-book replay on one core, alone and with everything up to features.

    python -m benchmarks.replay [--data FILE.mbo.dbn.zst] [--repeat 10] [--json]

    replay         live records, already decoded in memory, into a book that holds the file's snapshot: every record
                   applied, ten levels with sizes and counts written out at each F_LAST
    file_to_rows   the file: read, unzstd, decode, replay, clean, every state a row
    file_to_100ms  the same, sampled to 100 ms
    file_to_features   the same, and the features of each row

An event is one record of the file (trades and fills too). The best of `repeat` runs counts, in CPU
seconds, so that other work on the machine counts little. Compilation and imports are not in it, nor is inferring the
tick size (a second pass). Without --data the file is made up: random orders around a fixed price.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np

START = 1_704_205_800_000_000_000  # 2024-01-02T14:30:00Z
QUARTER = 250_000_000  # 1e-9


def best(run: Callable[[], float], repeat: int) -> float:
    """Seconds of the fastest of `repeat` runs; a run says itself how long its timed part took."""
    return min(run() for _ in range(repeat))


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()  # single-threaded work: what a core spends on it, whatever else the machine does
    work()
    return time.process_time() - start


def made_up(path: Path, events: int, seed: int = 0) -> Path:
    """A DBN file of random order flow: a snapshot of 10,000 orders, then adds, cancels and modifies near the price."""
    import databento_dbn as dbn

    rng = np.random.default_rng(seed)
    held = 10_000
    n = held + events
    data = np.zeros(n, np.dtype(dbn.MBOMsg._dtypes))
    action = np.full(n, b"A")
    action[held:] = rng.choice([b"A", b"C", b"M"], events, p=[0.4, 0.4, 0.2])
    ids, pick, live = np.arange(n), rng.random(n), []
    for i, (what, u) in enumerate(zip(action.tolist(), pick.tolist())):
        if what == b"A":
            live.append(i)
            continue
        at = int(u * len(live))
        ids[i] = live[at]
        if what == b"C":  # the last one takes its place
            live[at] = live[-1]
            live.pop()
    side = rng.integers(0, 2, n)[ids]
    away = np.minimum(rng.geometric(0.3, n), 40)
    away[:held] = rng.integers(1, 900, held)
    data["length"], data["rtype"], data["instrument_id"] = data.dtype.itemsize // 4, 160, 7
    data["order_id"], data["action"], data["side"] = ids + 1, action, np.where(side == 0, b"B", b"A")
    data["price"] = (20_000 + np.where(side == 0, -away, away)) * QUARTER
    data["size"] = rng.integers(1, 10, n)
    data["size"][action == b"C"] = 9  # all of it
    data["flags"] = np.where(rng.random(n) < 0.7, 128, 0)
    data["flags"][:held] = 40
    data["ts_event"] = data["ts_recv"] = START + np.arange(n) * 1_000_000
    day = datetime.fromtimestamp(START / 1e9, UTC).date()
    interval = SimpleNamespace(start_date=day, end_date=day.replace(day=day.day + 1), symbol="7")
    metadata = dbn.Metadata(
        dataset="TEST.DATA",
        start=START,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.MBO,
        symbols=["MADE"],
        mappings=[SimpleNamespace(raw_symbol="MADE", intervals=[interval])],
        version=3,
    )
    path.write_bytes(metadata.encode() + data.tobytes())
    return path


def measure(path: Path, repeat: int) -> dict[str, float]:
    """Events a second by stage."""
    from trainer.config import DataConfig
    from trainer.data import replay
    from trainer.data.dbn import BLOCK
    from trainer.data.dbn_file import open_dbn_file
    from trainer.data.features import FeatureStream
    from trainer.data.inputs import open_series

    records = np.concatenate([block for block, _ in open_dbn_file(path).blocks(1 << 20)])
    snapshot = int(((records["flags"] & replay.F_SNAPSHOT) != 0).sum())
    live = records[snapshot:]
    tick = open_series([path], DataConfig()).info.tick_size

    def alone() -> float:
        book = replay.Book(int(float(tick) * 1e9), 10)
        book.apply(records[:snapshot])

        def work() -> None:
            for start in range(0, len(live), BLOCK):
                _, code, at = book.apply(live[start : start + BLOCK])
                assert code == replay.OK, (code, start + at)

        return timed(work)

    def through(sample: str, features: bool) -> float:
        series = open_series([path], DataConfig(sample=sample, tick_size=float(tick)))
        stream = FeatureStream(10)

        def work() -> None:
            for frame in series.chunks():
                if features:
                    stream.push(frame)

        return timed(work)

    alone()
    through("100ms", True)  # compiles
    return {
        "events": float(len(records)),
        "replay_events_per_s": len(live) / best(alone, repeat),
        "file_to_rows_events_per_s": len(records) / best(lambda: through("event", False), repeat),
        "file_to_100ms_events_per_s": len(records) / best(lambda: through("100ms", False), repeat),
        "file_to_features_events_per_s": len(records) / best(lambda: through("100ms", True), repeat),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a DBN file of schema mbo (default: made up)")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of a made-up file")
    parser.add_argument("--repeat", type=int, default=10, help="runs; the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or made_up(Path(folder) / "made.dbn", args.events)
        result = {"data": "made up" if args.data is None else args.data.name, **measure(path, args.repeat)}
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32s} {value if isinstance(value, str) else format(value, '12,.0f')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
