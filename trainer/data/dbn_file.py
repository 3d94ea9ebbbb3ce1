"""One Databento DBN file (versions 1 to 3): its metadata, and its records in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import databento_dbn
import numpy as np

from trainer.data.streams import SUPPORTED, open_bytes
from trainer.data.ticks import NANO, NO_PRICE, decimal_text
from trainer.errors import DataError

STRUCTS = {
    "mbo": "MBOMsg",
    "mbp-10": "MBP10Msg",
    "mbp-1": "MBP1Msg",
    "tbbo": "MBP1Msg",
    "bbo-1s": "BBOMsg",
    "bbo-1m": "BBOMsg",
    "ohlcv-1s": "OHLCVMsg",
    "ohlcv-1m": "OHLCVMsg",
    "ohlcv-1h": "OHLCVMsg",
    "ohlcv-1d": "OHLCVMsg",
    "definition": "InstrumentDefMsg",
}
_FOREVER = 2**63 - 1


@dataclass
class DbnFile:
    path: Path
    schema: str
    dtype: np.dtype
    start: int  # byte of the first record
    contracts: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)  # symbol -> (from ns, to ns, id)

    def where(self, row: int) -> str:
        return f"{self.path}: record {row}"

    def blocks(self, count: int) -> Iterator[tuple[np.ndarray, int]]:
        """(records [<= count], index of the first). Raises DataError where the file is cut, damaged or mixed."""
        index = 0
        with open_bytes(self.path) as stream:
            _read(stream, self.start)
            while data := _read(stream, count * self.dtype.itemsize):
                if len(data) % self.dtype.itemsize:
                    cut = index + len(data) // self.dtype.itemsize + 1
                    raise DataError(f"{self.where(cut)}: the file ends in the middle\nfetch or copy it again")
                records = np.frombuffer(data, self.dtype)
                other = records["length"] != self.dtype.itemsize // 4  # DBN counts a record's length in 4-byte words
                if other.any():
                    raise DataError(
                        f"{self.where(index + int(np.argmax(other)) + 1)}: not a record of schema {self.schema}\n"
                        "files of mixed schemas are not supported: request one schema a file"
                    )
                yield records, index
                index += len(records)


def open_dbn_file(path: Path) -> DbnFile:
    """Reads the metadata. Raises DataError for a schema that has no quotes or bars, and for a damaged header."""
    with open_bytes(path) as stream:
        head = _read(stream, 8)
        size = int.from_bytes(head[4:8], "little")
        body = _read(stream, size) if len(head) == 8 and size < 1 << 30 else b""
    if len(head) < 8 or len(body) < size:
        raise DataError(f"{path}: the DBN header is truncated\nfetch or copy the file again")
    try:
        metadata = databento_dbn.Metadata.decode(head + body)
        contracts = _contracts(metadata.mappings)
    except (databento_dbn.DBNError, ValueError) as error:
        raise DataError(f"{path}: the DBN header can't be read: {error}\nfetch or copy the file again") from None
    schema = "mixed" if metadata.schema is None else str(metadata.schema)
    if schema not in STRUCTS:
        why = "trades alone have no quotes to fill against" if schema == "trades" else f"schema {schema} has no book"
        raise DataError(f"{path}: {why}, so it can't be traded on\n{SUPPORTED}")
    version = databento_dbn.__dict__.get(f"v{head[3]}")
    if version is None:
        raise DataError(f"{path}: DBN version {head[3]} is not known\nsupported: 1, 2 and 3; upgrade databento-dbn")
    fields = list(getattr(version, STRUCTS[schema])._dtypes)
    if metadata.ts_out:
        fields.append(("ts_out", "u8"))
    return DbnFile(path, schema, np.dtype(fields), 8 + size, contracts)


@dataclass(frozen=True)
class Definition:
    """What an exchange says of an instrument."""

    tick_size: str
    multiplier: float  # currency per point
    path: Path


def read_definitions(files: list[DbnFile]) -> dict[str, Definition]:
    """By raw symbol; the last record of a symbol counts."""
    found = {}
    for file in files:
        for records, _ in file.blocks(4096):
            for symbol, tick, quantity in records[
                ["raw_symbol", "min_price_increment", "unit_of_measure_qty"]
            ].tolist():
                if 0 < tick < NO_PRICE:
                    point = quantity / NANO if 0 < quantity < NO_PRICE else 1.0
                    found[symbol.decode()] = Definition(decimal_text(Decimal(tick) / NANO), point, file.path)
    return found


def _contracts(mappings: dict[str, Any]) -> dict[str, list[tuple[int, int, int]]]:
    """Which instrument ids a symbol had when. End dates are exclusive, as in DBN; an empty id is a gap."""
    return {
        symbol: [(_ns(i["start_date"]), _ns(i["end_date"]), int(i["symbol"])) for i in intervals if i["symbol"]]
        for symbol, intervals in mappings.items()
    }


def _ns(day: date | None) -> int:
    if day is None:
        return _FOREVER
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * NANO


def _read(stream: Any, size: int) -> bytes:
    """`size` bytes, or fewer at the end: a stream's read() may return less than asked for before that."""
    parts, missing = [], size
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
