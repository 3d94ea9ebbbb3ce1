"""CSV and Parquet as a feed of raw rows: books, quotes, quote bars and bars.

Read in batches of bounded size, packed or not, twice where the tick size has to be inferred. Row times:
a book's `ts_recv`, else `ts_event`; a quote's own time; a bar's end. Most vendors stamp a bar's start (Databento, Lean,
FXCM), so stamps are moved by the bar's length, the most frequent spacing of the first bars: taking an end for a start
only labels every row one bar late, while the reverse would show a close before it was known. `data.bar_stamp=end`
leaves them: the CME minute bars that run from 23:01 to 22:00 UTC in a session of 23:00 to 22:00 have such stamps.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from trainer.config import DataConfig
from trainer.data import cells
from trainer.data.bars import BAR_NOTE, bar_frame
from trainer.data.columns import Columns, read_columns
from trainer.data.frame import BookFrame, RawChunk, SeriesInfo
from trainer.data.replay import F_LAST
from trainer.data.streams import open_bytes
from trainer.data.ticks import TickGuess, nano_tick, tick_text, to_ticks
from trainer.data.volume import int32_volume, regroup
from trainer.errors import DataError, nearest

BATCH = 1 << 16  # rows of Parquet at once
BLOCK = 1 << 20  # bytes of CSV text at once; the reader keeps some forty blocks in flight
_INTERVALS = {1: "1s", 60: "1m", 300: "5m", 900: "15m", 1800: "30m", 3600: "1h", 14400: "4h", 86400: "1d"}


class Table:
    """One file."""

    def __init__(self, path: Path, kind: str):
        self.path, self.is_csv = path, kind == "csv"
        self.delimiter = ","
        self.columns: Columns = read_columns(self._header(), path)

    def where(self, row: int) -> str:
        """Row 1 is the first after the header; an editor shows it as line 2."""
        return f"{self.path}: line {row + 1}" if self.is_csv else f"{self.path}: row {row}"

    def at(self, row: np.ndarray) -> cells.Where:
        """Words for the i-th row of a batch whose rows have these numbers."""
        return lambda i: self.where(int(row[i]))

    def column(self, frame: pl.DataFrame, meaning: str) -> pl.Series:
        """A column under the name that the user knows it by."""
        return frame[meaning].alias(self.columns.names[meaning])

    def batches(self, meanings: list[str]) -> Iterator[tuple[pl.DataFrame, int]]:
        """(columns named by meaning, number of the first row, from 1)."""
        names = {m: self.columns.names[m] for m in meanings if m in self.columns.names}
        row = 1
        for batch in self._csv(list(names.values())) if self.is_csv else self._parquet(list(names.values())):
            frame = pl.DataFrame(batch)
            if len(frame):
                yield frame.rename({name: m for m, name in names.items()}), row
                row += len(frame)

    def _header(self) -> list[str]:
        if not self.is_csv:
            try:
                return list(pyarrow.parquet.read_schema(self.path).names)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{self.path}: damaged Parquet file: {error}\nfetch or copy it again") from None
        with open_bytes(self.path) as stream:
            line = stream.readline(1 << 16)
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{self.path}: line 1 is not UTF-8 text\nsave the file as UTF-8") from None
        self.delimiter = max(",;\t", key=text.count)
        return next(csv.reader([text], delimiter=self.delimiter), [])

    def _csv(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        header = self._header()
        with open_bytes(self.path) as stream:
            try:
                yield from pyarrow.csv.open_csv(
                    stream,
                    pyarrow.csv.ReadOptions(block_size=BLOCK, column_names=header, skip_rows=1, use_threads=False),
                    pyarrow.csv.ParseOptions(delimiter=self.delimiter),
                    pyarrow.csv.ConvertOptions(
                        include_columns=names,
                        column_types=dict.fromkeys(header, pa.string()),
                        null_values=[""],
                        strings_can_be_null=True,
                    ),
                )
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):  # a header alone
                    return
                place, what = "", str(error).splitlines()[0]
                if found := re.search(r"Row #(\d+): (.*)", what):  # counted from 1, with the header: an editor's line
                    place, what = f"line {found[1]}: ", found[2]
                raise DataError(
                    f"{self.path}: {place}not readable as CSV: {what[:160]}\ncorrect or drop that line"
                ) from None

    def _parquet(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                yield from file.iter_batches(batch_size=BATCH, columns=names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: damaged Parquet file: {error}\nfetch or copy it again") from None


def open_tabular(paths: list[Path], kinds: list[str], cfg: DataConfig) -> TabularFeed:
    """A feed of several tables of one layout in time order."""
    tables = [Table(path, kind) for path, kind in zip(paths, kinds)]
    kind = tables[0].columns.kind
    for table in tables[1:]:
        if table.columns.kind != kind or table.columns.levels != tables[0].columns.levels:
            raise DataError(
                f"{table.path}: {_shape(table.columns)}, but {paths[0]} holds {_shape(tables[0].columns)}\n"
                "give files of one layout: together they are one series"
            )
    levels = min(cfg.levels, max(1, tables[0].columns.levels))
    label = cfg.symbol or paths[0].name.split(".")[0]
    info = SeriesInfo(label, "", cfg.multiplier, levels, f"{'csv' if kinds[0] == 'csv' else 'parquet'} {kind}")
    feed = TabularFeed(tables, info, cfg)
    if cfg.tick_size:
        info.tick_size = tick_text(cfg.tick_size)
    else:
        guess = feed.guess_tick()
        info.tick_size = guess.text_of(str(paths[0]))
        info.note(f"tick size {info.tick_size} inferred from {guess.prices:,} prices; data.tick_size overrules it")
    nano_tick(info.tick_size)
    return feed


def _shape(columns: Columns) -> str:
    return f"a book of {columns.levels} levels" if columns.kind == "book" else columns.kind


class TabularFeed:
    """Raw rows of one instrument."""

    def __init__(self, tables: list[Table], info: SeriesInfo, cfg: DataConfig):
        self.tables, self.info, self.cfg = tables, info, cfg
        columns = tables[0].columns
        self.kind = columns.kind
        self.is_bars = self.kind in ("bars", "quote bars")
        self.has_trades = self.kind == "book" and ("action" in columns.names or "volume" in columns.names)
        self.is_book = self.kind == "book"
        self.unique_times = self.is_bars
        self.drop_duplicates = "action" not in columns.names
        self.symbol = cfg.symbol  # the one picked, or the first one seen in a symbol column
        self.bar_ns = self._bar_length() if self.is_bars else 0
        self.signed = self.traded = 0  # since the last row: records within an event are no rows

    def guess_tick(self) -> TickGuess:
        """Reads every price once."""
        guess = TickGuess()
        for table in self.tables:
            meanings, rows = table.columns.grid_prices(), 0
            for frame, row in self._picked(table, meanings):
                rows += len(frame)
                for meaning in meanings:
                    guess.add(cells.floats(table.column(frame, meaning), table.at(row)))
            if not rows:
                raise self._no_rows(table)
        return guess

    def raw(self) -> Iterator[RawChunk]:
        make = {"book": self._book, "quotes": self._quotes, "quote bars": self._quotes, "bars": self._bars}[self.kind]
        wanted = ["time", "signed_volume", "volume", "bid_size", "ask_size", "action", "side", "size", "flags"]
        for table in self.tables:
            seen = False
            sides = [n for n in table.columns.names if n[:7] in ("bid_sz_", "ask_sz_", "bid_ct_", "ask_ct_")]
            for frame, row in self._picked(table, [*wanted, *table.columns.prices(), *sides]):
                seen = True
                self.info.count("records", len(frame))
                ts = cells.times(table.column(frame, "time"), table.at(row))
                if self.is_bars:
                    ts = self._bar_ends(ts)
                yield self._events(make(frame, ts, row, table), frame)
            if not seen:
                raise self._no_rows(table)

    def _no_rows(self, table: Table) -> DataError:
        return DataError(f"{table.path}: no rows under the header\ncheck the file")

    def _picked(self, table: Table, meanings: list[str]) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
        """Batches of the chosen symbol's rows, with their numbers. Raises DataError for a second symbol unasked."""
        found: set[str] = set()
        kept = False
        for frame, first in table.batches([*meanings, "symbol"]):
            row = np.arange(first, first + len(frame))
            if "symbol" in frame.columns:
                present = frame["symbol"].cast(pl.String).drop_nulls().unique().sort().to_list()
                found |= set(present)
                self.symbol = self.symbol or (present[0] if present else "")
                if not self.cfg.symbol:
                    self.info.symbol = self.symbol
                    if found - {self.symbol}:
                        names = ", ".join(sorted(found)[:12])
                        raise DataError(
                            f"{table.path}: several instruments: {names}\npick one with data.symbol (--symbol)"
                        )
                mine = (frame["symbol"].cast(pl.String) == self.symbol).fill_null(False).to_numpy()
                frame, row = frame.filter(mine), row[mine]
            if len(frame):
                kept = True
                yield frame, row
        if found and not kept:
            raise DataError(
                f"{table.path}: no instrument {self.symbol!r}{nearest(self.symbol, sorted(found))}\n"
                f"choose one of {', '.join(sorted(found)[:12])}"
            )

    def _events(self, chunk: RawChunk, frame: pl.DataFrame) -> RawChunk:
        """Only the states at an event's end, where a table has the feed's flags."""
        if not {"action", "flags"} <= set(frame.columns):
            return chunk
        flags = cells.volumes(frame["flags"], lambda i: chunk.where(int(chunk.row[i])))
        keep = (flags & F_LAST) != 0
        rows = chunk.frame.take(keep)
        signed, self.signed = regroup(chunk.frame.signed_volume, keep, self.signed)
        rows.signed_volume = int32_volume(signed, self.info.symbol)
        if chunk.frame.volume is not None:
            rows.volume, self.traded = regroup(chunk.frame.volume, keep, self.traded)
        return RawChunk(rows, chunk.row[keep], chunk.where)

    def _bar_length(self) -> int:
        """The most frequent spacing of the first bars, ns."""
        table = self.tables[0]
        frame, row = next(self._picked(table, ["time"]), (None, None))
        if frame is None or row is None:
            raise self._no_rows(table)
        gaps = np.diff(cells.times(table.column(frame, "time"), table.at(row)))
        if not (gaps > 0).any():
            raise DataError(f"{table.path}: one bar alone doesn't tell its length\ngive more bars")
        values, counts = np.unique(gaps[gaps > 0], return_counts=True)
        return int(values[np.argmax(counts)])

    def _bar_ends(self, ts: np.ndarray) -> np.ndarray:
        if self.cfg.bar_stamp == "end":
            return ts
        length = _INTERVALS.get(self.bar_ns // 10**9, f"{self.bar_ns / 1e9:g} s")
        self.info.note(f"bar times are taken as starts and moved by {length}; data.bar_stamp=end leaves them")
        return ts + self.bar_ns

    def _bars(self, frame: pl.DataFrame, ts: np.ndarray, row: np.ndarray, table: Table) -> RawChunk:
        self.info.note(BAR_NOTE.format(spread=self.cfg.spread_ticks))
        close = self._ticks(frame, ["close"], row, table)[:, 0]
        signed, volume = self._volume(frame, row, table)
        out = bar_frame(ts, close, volume, self.cfg.spread_ticks)
        out.signed_volume = signed
        return RawChunk(out, row, table.where)

    def _quotes(self, frame: pl.DataFrame, ts: np.ndarray, row: np.ndarray, table: Table) -> RawChunk:
        bid, ask = ("bid_close", "ask_close") if self.is_bars else ("bid", "ask")
        signed, volume = self._volume(frame, row, table)
        out = BookFrame(
            ts=ts,
            bid_px=self._ticks(frame, [bid], row, table),
            ask_px=self._ticks(frame, [ask], row, table),
            bid_sz=self._sizes(frame, ["bid_size"], row, table),
            ask_sz=self._sizes(frame, ["ask_size"], row, table),
            signed_volume=signed,
            session=np.zeros(len(ts), np.int32),
            volume=volume,
        )
        return RawChunk(out, row, table.where)

    def _book(self, frame: pl.DataFrame, ts: np.ndarray, row: np.ndarray, table: Table) -> RawChunk:
        def names(kind: str) -> list[str]:
            return [f"{kind}_{i:02d}" for i in range(self.info.levels)]

        counted = "bid_ct_00" in frame.columns and "ask_ct_00" in frame.columns
        signed, volume = self._volume(frame, row, table)
        out = BookFrame(
            ts=ts,
            bid_px=self._ticks(frame, names("bid_px"), row, table),
            ask_px=self._ticks(frame, names("ask_px"), row, table),
            bid_sz=self._sizes(frame, names("bid_sz"), row, table),
            ask_sz=self._sizes(frame, names("ask_sz"), row, table),
            signed_volume=signed,
            session=np.zeros(len(ts), np.int32),
            volume=volume,
            bid_ct=self._sizes(frame, names("bid_ct"), row, table) if counted else None,
            ask_ct=self._sizes(frame, names("ask_ct"), row, table) if counted else None,
        )
        return RawChunk(out, row, table.where)

    def _ticks(self, frame: pl.DataFrame, names: list[str], row: np.ndarray, table: Table) -> np.ndarray:
        prices = np.stack([cells.floats(table.column(frame, name), table.at(row)) for name in names], axis=1)
        return to_ticks(prices, self.info.tick_size, row, table.where)

    def _sizes(self, frame: pl.DataFrame, names: list[str], row: np.ndarray, table: Table) -> np.ndarray:
        """int32 [n, LV]; a column that is not there is 0, unknown."""
        none = np.zeros(len(frame), np.int32)
        at = table.at(row)
        return np.stack(
            [cells.sizes(table.column(frame, n), at) if n in frame.columns else none for n in names], axis=1
        )

    def _volume(self, frame: pl.DataFrame, row: np.ndarray, table: Table) -> tuple[np.ndarray, Any]:
        """Signed int32 [n] and total int64 [n] (None: not known) volume of each row."""
        at = table.at(row)
        signed, volume = np.zeros(len(frame), np.int64), None
        if "action" in frame.columns and {"side", "size"} <= set(frame.columns):
            trade = (frame["action"] == "T").fill_null(False).to_numpy()
            volume = np.where(trade, cells.volumes(table.column(frame, "size"), at), 0)
            side = frame["side"].cast(pl.String)
            signed = volume * ((side == "B").cast(pl.Int64) - (side == "A").cast(pl.Int64)).fill_null(0).to_numpy()
            self.info.count("trades", int(trade.sum()))
        elif "volume" in frame.columns:
            volume = cells.volumes(table.column(frame, "volume"), at)
        if "signed_volume" in frame.columns:
            signed = cells.volumes(table.column(frame, "signed_volume"), at, signed=True)
        return int32_volume(signed, table.where(int(row[-1]))), volume
