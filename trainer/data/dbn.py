"""DBN files as a feed of raw rows: mbo (replayed), mbp-10, mbp-1, tbbo, bbo and ohlcv.

A row's time is `ts_recv`, when the record reached the recorder: the first moment at which anybody could act on it. For
bars it is the end of the bar (DBN stamps the start). mbo and mbp rows are the book after an event (F_LAST); a tbbo row
is the quote just before its trade; a bbo row is the quote at the end of its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainer.config import DataConfig
from trainer.data import replay
from trainer.data.bars import BAR_NOTE, bar_frame
from trainer.data.dbn_file import DbnFile, open_dbn_file, read_definitions
from trainer.data.frame import BookFrame, RawChunk, SeriesInfo
from trainer.data.ticks import TickGuess, nano_tick, nano_to_ticks, off_grid, tick_text
from trainer.data.volume import int32_volume, regroup
from trainer.errors import DataError, nearest

BLOCK = 16384  # records; a replay is fastest when book and block stay in the cache
F_BAD_TS_RECV = 8
_BAR_NS = {"ohlcv-1s": 10**9, "ohlcv-1m": 60 * 10**9, "ohlcv-1h": 3600 * 10**9, "ohlcv-1d": 86400 * 10**9}
_EVENTS = ("mbo", "mbp-10", "mbp-1")  # schemas that say with F_LAST where an event ends
# (file, records, times, record numbers, a new contract begins, the file begins) -> rows
_Rows = Callable[[DbnFile, np.ndarray, np.ndarray, np.ndarray, bool, bool], Iterator[RawChunk]]
_STOPS = {
    replay.NO_SIDE: "an order record has no side (B or A)\nthe file is damaged or not a by-order feed: fetch it again",
    replay.BAD_SIZE: "an order of more than 2**30 lots\nthe file is damaged: fetch it again",
    replay.NOT_ORDERS: "a by-price record (F_TOB or F_MBP) among orders\nsupported: by-order feeds; request mbp-10",
    replay.NO_START: (
        "changes an order that was never added, and the file begins without a snapshot or clear record, so its book "
        "would be incomplete\nbegin with the file in which the trading day starts"
    ),
    replay.NO_ID: "an order record has no order id\nthe file is damaged: fetch it again",
    replay.BAD_ACTION: "an unknown action (known: A C M R T F N)\nthe file is damaged: fetch it again",
}


def open_dbn(paths: list[Path], cfg: DataConfig) -> DbnFeed:
    """A feed of several files in time order; definition files among them give tick size and multiplier."""
    files = [open_dbn_file(path) for path in paths]
    data = [f for f in files if f.schema != "definition"]
    if not data:
        raise DataError(f"{paths[0]}: instrument definitions alone hold no prices\nadd the file with the market data")
    for other in data[1:]:
        if other.schema != data[0].schema:
            raise DataError(
                f"{other.path}: schema {other.schema}, but {data[0].path} has {data[0].schema}\n"
                "give files of one schema: together they are one series"
            )
    symbol = _choose_symbol(data, cfg.symbol)
    depth = 10 if data[0].schema in ("mbo", "mbp-10") else 1
    info = SeriesInfo(symbol, "", cfg.multiplier, min(cfg.levels, depth), data[0].schema)
    feed = DbnFeed(data, symbol, info, cfg.spread_ticks)
    definition = read_definitions([f for f in files if f.schema == "definition"]).get(symbol)
    if definition and "multiplier" not in cfg.model_fields_set:
        info.multiplier = definition.multiplier
        info.note(f"multiplier {definition.multiplier:g} from the definition in {definition.path.name}")
    if cfg.tick_size:
        info.tick_size = tick_text(cfg.tick_size)
    elif definition:
        info.tick_size = definition.tick_size
        info.note(f"tick size {definition.tick_size} from the definition in {definition.path.name}")
    else:
        guess = feed.guess_tick()
        info.tick_size = guess.text_of(str(data[0].path))
        info.note(f"tick size {info.tick_size} inferred from {guess.prices:,} prices; data.tick_size overrules it")
    nano_tick(info.tick_size)
    return feed


def _choose_symbol(files: list[DbnFile], wanted: str) -> str:
    symbols = sorted({symbol for file in files for symbol in file.contracts})
    shown = ", ".join(symbols[:12]) + (f" and {len(symbols) - 12} more" if len(symbols) > 12 else "")
    if wanted:
        for file in files:
            if wanted not in file.contracts:
                raise DataError(
                    f"{file.path}: no instrument {wanted!r}{nearest(wanted, list(file.contracts))}\n"
                    f"choose one of {', '.join(sorted(file.contracts)[:12]) or 'none'}"
                )
        return wanted
    if not symbols:
        raise DataError(f"{files[0].path}: its header names no instrument\nrequest the file with symbol mappings")
    if len(symbols) > 1:
        raise DataError(f"{files[0].path}: several instruments: {shown}\npick one with data.symbol (--symbol)")
    return symbols[0]


class DbnFeed:
    """Raw rows of one instrument."""

    unique_times = False
    drop_duplicates = False  # equal records are events of their own: a feed numbers them

    def __init__(self, files: list[DbnFile], symbol: str, info: SeriesInfo, spread: int):
        self.files, self.symbol, self.info, self.spread = files, symbol, info, spread
        self.schema = info.schema
        self.has_trades = self.schema in _EVENTS
        self.is_book = self.schema in ("mbo", "mbp-10", "mbp-1")
        self.unique_times = self.schema in _BAR_NS
        self.bar_ns = _BAR_NS.get(self.schema, 0)

    def raw(self) -> Iterator[RawChunk]:
        make: _Rows = self._bars
        if self.schema in _BAR_NS:
            self.info.note(BAR_NOTE.format(spread=self.spread))
        elif self.schema == "mbo":
            make = _Replay(self.info).rows
        else:
            make = _Quotes(self.info).rows
        contract = None
        before = None  # time of the last record with a sound ts_recv
        for file in self.files:
            last, states = -1, self.info.counts.get("states", 0)
            for records, row in self._picked(file):
                self.info.count("records", len(records))
                ts, before = _times(records, before)
                if contract is None:
                    contract = records["instrument_id"][0]
                for part in _same_contract(records):
                    roll = records["instrument_id"][part.start] != contract
                    contract = records["instrument_id"][part.start]
                    yield from make(file, records[part], ts[part], row[part], roll, last < 0)
                    last = int(row[part][-1])
            if last < 0:
                raise DataError(f"{file.path}: no record of {self.symbol}\ncheck the file and data.symbol")
            self._check_states(file, states)

    def _check_states(self, file: DbnFile, before: int) -> None:
        """A file may hold no live event (a holiday's snapshot) beside others that do; all of them may not."""
        if self.schema != "mbo" or self.info.counts.get("states", 0) > before:
            return
        if len(self.files) > 1 and (file is not self.files[-1] or before):
            self.info.note(f"{file.path.name}: only a snapshot, no live events")
            return
        why = "only a snapshot, no live events (the market was closed)"
        if not self.info.counts.get("snapshot"):
            why = "no record ends an event (flag F_LAST), so no state of the book is complete"
        raise DataError(f"{file.path}: {why}\ngive a file of a trading day")

    def guess_tick(self) -> TickGuess:
        """Reads every price once."""
        guess = TickGuess()
        for file in self.files:
            for records, _ in self._picked(file):
                if self.schema == "mbo":
                    orders = np.isin(records["action"], (b"A", b"M"))
                    guess.add_nano(records["price"][orders])
                else:
                    for name in _price_names(self.schema, self.info.levels):
                        guess.add_nano(records[name])
        return guess

    def _picked(self, file: DbnFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of the chosen instrument's records, and their numbers in the file, from 1."""
        spans = file.contracts[self.symbol]
        always = len({instrument for _, _, instrument in spans}) == 1
        clock = "ts_event" if self.schema in _BAR_NS else "ts_recv"
        for records, first in file.blocks(BLOCK):
            mine = np.zeros(len(records), bool)
            ts = records[clock].view(np.int64)
            for start, stop, instrument in spans:
                mine |= (records["instrument_id"] == instrument) & (always | (ts >= start) & (ts < stop))
            if mine.any():
                row = np.arange(first + 1, first + 1 + len(records))
                yield (records, row) if mine.all() else (records[mine], row[mine])

    def _bars(
        self, file: DbnFile, records: np.ndarray, ts: np.ndarray, row: np.ndarray, roll: bool, _: bool
    ) -> Iterator[RawChunk]:
        close = nano_to_ticks(records["close"], self.info.tick_size, row, file.where)
        volume = records["volume"].astype(np.int64)
        yield RawChunk(bar_frame(ts + self.bar_ns, close, volume, self.spread), row, file.where, roll)


class _Replay:
    """MBO records -> book states. The book lives through the files of a series."""

    def __init__(self, info: SeriesInfo):
        self.info = info
        self.book = replay.Book(nano_tick(info.tick_size), info.levels)

    def rows(
        self, file: DbnFile, records: np.ndarray, ts: np.ndarray, row: np.ndarray, roll: bool, first: bool
    ) -> Iterator[RawChunk]:
        if roll:
            self.book.clear()
        if first:
            self.book.carry[replay.IN_SNAPSHOT] = 0  # a snapshot at the head of a file begins anew
        before = self.book.counters.copy()
        states, code, at = self.book.apply(records)
        if code == replay.OFF_GRID:
            raise off_grid(records["price"][at] / 1e9, self.info.tick_size, file.where(int(row[at])))
        if code != replay.OK:
            raise DataError(f"{file.where(int(row[at]))}: {_STOPS[code]}")
        self._count(self.book.counters - before)
        done = states["at"]
        place = file.where(int(row[-1]))
        frame = BookFrame(
            ts=ts[done],
            bid_px=states["bid_px"],
            ask_px=states["ask_px"],
            bid_sz=states["bid_sz"],
            ask_sz=states["ask_sz"],
            signed_volume=int32_volume(states["signed"], place),
            session=np.zeros(len(done), np.int32),
            volume=states["volume"],
            bid_ct=states["bid_ct"],
            ask_ct=states["ask_ct"],
        )
        yield RawChunk(frame, row[done], file.where, roll)

    def _count(self, new: np.ndarray) -> None:
        self.info.count("states", new[replay.STATES])
        self.info.count("trades", new[replay.TRADES])
        self.info.count("snapshot", new[replay.SNAPSHOT])
        self.info.add("unknown-order", new[replay.UNKNOWN])
        self.info.add("duplicate-order", new[replay.TWICE])
        self.info.add("over-cancel", new[replay.OVER])
        self.info.add("empty-order", new[replay.EMPTY])


class _Quotes:
    """mbp-10, mbp-1, tbbo and bbo records -> rows."""

    def __init__(self, info: SeriesInfo):
        self.info = info
        self.signed = self.traded = 0  # since the last row

    def rows(
        self, file: DbnFile, records: np.ndarray, ts: np.ndarray, row: np.ndarray, roll: bool, _: bool
    ) -> Iterator[RawChunk]:
        if roll:
            self.signed = self.traded = 0
        keep = (records["flags"] & replay.F_LAST) != 0 if self.info.schema in _EVENTS else np.ones(len(records), bool)
        signed, volume = self._volume(records, keep)
        kept = records[keep]
        tick, levels = self.info.tick_size, self.info.levels

        def side(kind: str) -> np.ndarray:
            return np.stack([kept[f"{kind}_{i:02d}"] for i in range(levels)], axis=1)

        def count(kind: str) -> np.ndarray:
            return np.minimum(side(kind), 2**31 - 1).astype(np.int32)

        self.info.count("states", len(kept))
        frame = BookFrame(
            ts=ts[keep],
            bid_px=nano_to_ticks(side("bid_px"), tick, row[keep], file.where),
            ask_px=nano_to_ticks(side("ask_px"), tick, row[keep], file.where),
            bid_sz=count("bid_sz"),
            ask_sz=count("ask_sz"),
            signed_volume=int32_volume(signed, file.where(int(row[-1]))),
            session=np.zeros(len(kept), np.int32),
            volume=volume,
            bid_ct=count("bid_ct"),
            ask_ct=count("ask_ct"),
        )
        yield RawChunk(frame, row[keep], file.where, roll)

    def _volume(self, records: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Signed and total volume since the row before, int64, of the kept records. bbo doesn't say what traded."""
        if "action" not in (records.dtype.names or ()):
            return np.zeros(int(keep.sum()), np.int64), None
        trade = records["action"] == b"T"
        self.info.count("trades", trade.sum())
        size = np.where(trade, records["size"].astype(np.int64), 0)
        sign = (records["side"] == b"B").astype(np.int64) - (records["side"] == b"A")
        signed, self.signed = regroup(size * sign, keep, self.signed)
        volume, self.traded = regroup(size, keep, self.traded)
        return signed, volume


def _same_contract(records: np.ndarray) -> Iterator[slice]:
    """Runs of one instrument id."""
    cuts = np.flatnonzero(np.diff(records["instrument_id"])) + 1
    edges = [0, *cuts.tolist(), len(records)]
    yield from (slice(a, b) for a, b in pairwise(edges))


def _times(records: np.ndarray, before: int | None) -> tuple[np.ndarray, int | None]:
    """int64 ns [n], and the last sound time. A receive time flagged as bad is moved between its sound neighbours."""
    if "ts_recv" not in (records.dtype.names or ()):
        return records["ts_event"].astype(np.int64), before
    ts = records["ts_recv"].astype(np.int64)
    bad = (records["flags"] & F_BAD_TS_RECV) != 0
    sound = ts[~bad]
    if bad.any() and len(sound):
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        past = np.maximum.accumulate(np.where(bad, low if before is None else before, ts))
        future = np.minimum.accumulate(np.where(bad, high, ts)[::-1])[::-1]
        ts = np.where(bad, np.minimum(np.maximum(ts, past), np.maximum(future, past)), ts)
    return ts, int(sound[-1]) if len(sound) else before


def _price_names(schema: str, levels: int) -> list[str]:
    if schema in _BAR_NS:
        return ["open", "high", "low", "close"]
    return [f"{side}_px_{i:02d}" for side in ("bid", "ask") for i in range(levels)]
