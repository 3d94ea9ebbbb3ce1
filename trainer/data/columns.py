"""Which columns of a table mean what: book, quotes, quote bars or bars, told by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import DataError, nearest

TIMES = ("ts_recv", "ts_event", "timestamp", "timestamp_utc", "datetime", "date", "time", "open_time")
_UNNAMED = ("", "unnamed:_0", "index", "__index_level_0__")  # how a frame's index is written by pandas
_SYMBOLS = ("symbol", "ticker", "instrument")
_ALIASES = {
    "open": ("open", "o"),
    "high": ("high", "h"),
    "low": ("low", "l"),
    "close": ("close", "c", "last"),
    "volume": ("volume", "vol", "v"),
    "bid": ("bid", "bid_price", "bidprice", "bid_px"),
    "ask": ("ask", "ask_price", "askprice", "ask_px", "offer"),
    "bid_size": ("bid_size", "bid_sz", "bidsize", "bid_volume", "bidvolume", "bid_qty"),
    "ask_size": ("ask_size", "ask_sz", "asksize", "ask_volume", "askvolume", "ask_qty", "offer_size"),
}
_BOOK = re.compile(r"(bid|ask)_(px|sz|ct)_(\d\d)")
_QUOTE_BAR = re.compile(r"(bid|ask)_(open|high|low|close)")
_LOBSTER = re.compile(r"(bid|ask)_?(\d+_?)?(price|qty|size)_?\d*")
# Columns that say nothing about the rows we need: Databento's bookkeeping, what vendors add to bars.
_IGNORED = {
    "book": {"rtype", "publisher_id", "instrument_id", "sequence", "ts_in_delta", "depth", "price", "ts_event"},
    "quotes": set(),
    "quote bars": set(),
    "bars": {"adj_close", "vwap", "average", "trades", "trade_count", "open_interest", "rtype", "publisher_id"}
    | {"instrument_id"},
}
EXPECTED = (
    "expected one of\n"
    "  a book:     ts_event, bid_px_00, ask_px_00, bid_sz_00, ask_sz_00, ... _09, signed_volume\n"
    "  quotes:     timestamp, bid, ask, bid_size, ask_size\n"
    "  quote bars: timestamp, bid_close, ask_close, volume\n"
    "  bars:       timestamp, open, high, low, close, volume"
)


@dataclass(frozen=True)
class Columns:
    """`kind` and, for each meaning, the column's name in the file."""

    kind: str
    names: dict[str, str]
    levels: int

    def prices(self) -> list[str]:
        """Meanings of the price columns that become rows."""
        if self.kind == "book":
            return [f"{side}_px_{i:02d}" for side in ("bid", "ask") for i in range(self.levels)]
        return {"quotes": ["bid", "ask"], "quote bars": ["bid_close", "ask_close"], "bars": ["close"]}[self.kind]

    def grid_prices(self) -> list[str]:
        """Meanings of all price columns, from which a tick size can be told."""
        extra = ("open", "high", "low") if self.kind == "bars" else ()
        return [*self.prices(), *(name for name in extra if name in self.names)]


def read_columns(header: list[str], path: Path) -> Columns:
    """Raises DataError for a missing header, unknown or doubled columns, and what is not supported yet."""
    clean = {name: re.sub(r"[\s\-]+", "_", name.strip().lower()) for name in header}
    if any("{" in name for name in header):
        raise DataError(f"{path}: JSON lines are not supported yet\n{EXPECTED}")
    if any(re.fullmatch(r"[+-]?[\d.:\s\-]*\d[\d.:\s\-]*", name) for name in header):
        raise DataError(
            f"{path}: no header: the first line is {', '.join(header)[:80]}\nadd a line of names; {EXPECTED}"
        )
    if len(set(header)) < len(header):
        double = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}: two columns are named {double!r}\nrename or drop one")
    names = _meanings(clean)
    kind = _kind(names, clean, header, path)
    levels = len([n for n in names if n.startswith("bid_px_")])
    if kind == "book":
        _check_levels(names, levels, path)
    known = _known(kind)
    for name, meaning in clean.items():
        if name not in names.values() and meaning not in _IGNORED[kind] and meaning not in TIMES:
            raise DataError(f"{path}: unknown column {name!r}{nearest(meaning, known)}\ndrop or rename it; {EXPECTED}")
    extra = [m for m in names if m not in known and m != "time"]
    if extra:
        raise DataError(f"{path}: column {names[extra[0]]!r} has no meaning beside {kind}\ndrop it; {EXPECTED}")
    return Columns(kind, names, levels)


def _meanings(clean: dict[str, str]) -> dict[str, str]:
    """Meaning -> column name in the file."""
    names: dict[str, str] = {}
    back = {meaning: name for name, meaning in clean.items()}
    for time in (*TIMES, *_UNNAMED):
        if time in back:
            names["time"] = back[time]
            break
    for symbol in _SYMBOLS:
        if symbol in back:
            names["symbol"] = back[symbol]
    for meaning, aliases in _ALIASES.items():
        if found := [back[alias] for alias in aliases if alias in back]:
            names[meaning] = found[0]
    exact = ("signed_volume", "action", "side", "size", "flags")
    for name, meaning in clean.items():
        if meaning in exact or _BOOK.fullmatch(meaning) or _QUOTE_BAR.fullmatch(meaning):
            names[meaning] = name
    return names


def _kind(names: dict[str, str], clean: dict[str, str], header: list[str], path: Path) -> str:
    wanted = {
        "book": ("bid_px_00", "ask_px_00"),
        "quote bars": ("bid_close", "ask_close"),
        "quotes": ("bid", "ask"),
        "bars": ("close",),
    }
    kind = next((kind for kind, need in wanted.items() if all(n in names for n in need)), "")
    if kind and "time" in names:
        return kind
    if sum(bool(_LOBSTER.fullmatch(meaning)) for meaning in clean.values()) >= 4:
        raise DataError(f"{path}: LOBSTER files are not supported yet\n{EXPECTED}")
    known = sorted({*TIMES, *(n for k in wanted for n in _known(k))})
    if kind:
        raise DataError(f"{path}: no time column among {', '.join(header)}\nname it one of {', '.join(TIMES)}")
    near = next((hint for meaning in clean.values() if meaning not in known and (hint := nearest(meaning, known))), "")
    raise DataError(f"{path}: columns {', '.join(header)[:200]} are no known layout{near}\n{EXPECTED}")


def _known(kind: str) -> list[str]:
    if kind == "book":
        book = [f"{side}_{what}_{i:02d}" for side in ("bid", "ask") for what in ("px", "sz", "ct") for i in range(10)]
        return [*book, "signed_volume", "volume", "symbol", "action", "side", "size", "flags"]
    if kind == "quotes":
        return ["bid", "ask", "bid_size", "ask_size", "signed_volume", "volume", "symbol"]
    if kind == "quote bars":
        sides = [f"{side}_{what}" for side in ("bid", "ask") for what in ("open", "high", "low", "close")]
        return [*sides, "bid_size", "ask_size", "signed_volume", "volume", "symbol"]
    return ["open", "high", "low", "close", "signed_volume", "volume", "symbol"]


def _check_levels(names: dict[str, str], levels: int, path: Path) -> None:
    for i in range(levels):
        for side in ("bid", "ask"):
            if f"{side}_px_{i:02d}" not in names:
                raise DataError(
                    f"{path}: no column {side}_px_{i:02d}, though there are {levels} bid levels\n"
                    "give both sides the same levels, from 00 on"
                )
