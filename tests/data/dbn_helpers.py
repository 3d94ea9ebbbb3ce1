"""Small DBN files for tests, and an order book kept the slow and obvious way."""

import datetime
from bisect import bisect_left, insort
from pathlib import Path
from types import SimpleNamespace

import databento_dbn as dbn
import numpy as np
import zstandard

SECOND = 1_000_000_000
DAY = datetime.date(2024, 3, 4)
START = 1_709_510_400 * SECOND  # DAY, 00:00 UTC
NONE = 2**63 - 1
TYPES = {
    "mbo": (dbn.MBOMsg, 160),
    "mbp-1": (dbn.MBP1Msg, 1),
    "mbp-10": (dbn.MBP10Msg, 10),
    "tbbo": (dbn.MBP1Msg, 1),
    "bbo-1s": (dbn.BBOMsg, 0xC3),
    "ohlcv-1m": (dbn.OHLCVMsg, 33),
    "trades": (dbn.TradeMsg, 0),
}


def records(schema: str, rows: list[dict], instrument: int = 7) -> np.ndarray:
    """Structured records; `price`-like values in 1e-9, `ts_event` defaults to `ts_recv`."""
    message, rtype = TYPES[schema]
    dtype = np.dtype(message._dtypes)
    out = np.zeros(len(rows), dtype)
    out["length"], out["rtype"], out["instrument_id"] = dtype.itemsize // 4, rtype, instrument
    for name in dtype.names:
        if "_px_" in name:
            out[name] = NONE
    for i, row in enumerate(rows):
        for name, value in {"ts_event": row.get("ts_recv", 0), **row}.items():
            out[i][name] = value
    return out


def write_dbn(path: Path, schema: str | None, data: np.ndarray, symbols: dict | None = None) -> Path:
    """A DBN version 3 file; zstd when the name says so. `symbols`: name -> id, or [(from, to, id)]."""
    week = datetime.timedelta(days=7)
    mappings = []
    symbols = {"TEST": 7} if symbols is None else symbols
    for name, spans in symbols.items():
        spans = [(DAY - week, DAY + week, spans)] if isinstance(spans, int) else spans
        days = [SimpleNamespace(start_date=a, end_date=b, symbol=str(number)) for a, b, number in spans]
        mappings.append(SimpleNamespace(raw_symbol=name, intervals=days))
    metadata = dbn.Metadata(
        dataset="TEST.DATA",
        start=START,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=None if schema is None else dbn.Schema.from_str(schema),
        symbols=list(symbols),
        mappings=mappings,
        version=3,
    )
    raw = metadata.encode() + data.tobytes()
    path.write_bytes(zstandard.compress(raw) if path.suffix == ".zst" else raw)
    return path


class SlowBook:
    """Orders in a dict, level totals in dicts, prices in sorted lists."""

    def __init__(self) -> None:
        self.clear()
        self.signed = self.volume = 0

    def clear(self) -> None:
        self.orders: dict[int, tuple[str, int, int]] = {}
        self.levels: dict[str, dict[int, list[int]]] = {"B": {}, "A": {}}
        self.prices: dict[str, list[int]] = {"B": [], "A": []}

    def _remove(self, order_id: int) -> tuple[str, int, int]:
        side, price, size = self.orders.pop(order_id)
        level = self.levels[side][price]
        level[0] -= size
        level[1] -= 1
        if level[1] == 0:
            del self.levels[side][price]
            del self.prices[side][bisect_left(self.prices[side], price)]
        return side, price, size

    def _add(self, order_id: int, side: str, price: int, size: int) -> None:
        self.orders[order_id] = side, price, size
        if price not in self.levels[side]:
            self.levels[side][price] = [0, 0]
            insort(self.prices[side], price)
        self.levels[side][price][0] += size
        self.levels[side][price][1] += 1

    def apply(self, action: str, side: str, order_id: int, price: int, size: int) -> None:
        if action == "T":
            self.volume += size
            self.signed += {"B": size, "A": -size, "N": 0}[side]
        elif action == "R":
            self.clear()
        elif action == "C":
            if order_id in self.orders:
                was_side, was_price, rests = self._remove(order_id)
                if rests > size:
                    self._add(order_id, was_side, was_price, rests - size)
        elif action in "AM":
            if order_id in self.orders:
                self._remove(order_id)
            if size:
                self._add(order_id, side, price, size)

    def state(self, depth: int) -> tuple:
        """(signed, volume, bid [(price, size, orders)] best first, ask the same); the volume starts again."""
        bids = [(p, *self.levels["B"][p]) for p in self.prices["B"][-1 : -depth - 1 : -1]]
        asks = [(p, *self.levels["A"][p]) for p in self.prices["A"][:depth]]
        out = self.signed, self.volume, bids, asks
        self.signed = self.volume = 0
        return out


def slow_states(data: np.ndarray, depth: int) -> list[tuple]:
    """(record index, signed, volume, bids, asks) after every event that is not part of a snapshot."""
    book, states, in_snapshot = SlowBook(), [], False
    columns = ("action", "side", "order_id", "price", "size", "flags")
    for i, (action, side, order_id, price, size, flags) in enumerate(data[list(columns)].tolist()):
        if flags & 32 and not in_snapshot:
            book.clear()
        in_snapshot = bool(flags & 32)
        book.apply(action.decode(), side.decode(), order_id, price, size)
        if flags & 128 and not in_snapshot:
            states.append((i, *book.state(depth)))
    return states
