"""Cells of a table to numbers and times, exactly, with the row of the first bad one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from trainer.errors import DataError

Where = Callable[[int], str]
_TIME = (  # date, optional time with up to nine decimals of a second (or HHMMSSmmm), optional zone
    r"^\s*(\d{4})-?(\d{2})-?(\d{2})"
    r"(?:[T ]+(\d{2}):?(\d{2})(?::?(\d{2})(?:[.,]?(\d{1,9}))?)?)?\s*(?:Z|UTC|([+-])(\d{2}):?(\d{2}))?\s*$"
)
_EPOCHS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (2**63, 1))  # below: ns a unit (s, ms, us, ns)


def times(column: pl.Series, where: Where) -> np.ndarray:
    """int64 ns since 1970 [n]. Texts and times without a zone are UTC; numbers are s, ms, us or ns by magnitude."""
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        digits = text.str.contains(r"^\d{9,19}$").fill_null(False)
        if 2 * digits.sum() > len(digits):  # what most cells are: an odd one among them is the one that is named
            parsed = _epoch(pl.select(pl.when(digits).then(text).cast(pl.Int64, strict=False)).to_series())
        else:
            parsed = _text(column)
    elif column.dtype == pl.Date or column.dtype.base_type() == pl.Datetime:
        parsed = (
            column.cast(pl.Datetime("ns"), strict=False).cast(pl.Int64)
            if column.dtype == pl.Date
            else _physical(column)
        )
    elif column.dtype.is_integer():
        parsed = _epoch(column.cast(pl.Int64))
    else:
        raise DataError(f"{where(0)}: column {column.name!r} of type {column.dtype} is no time\ngive UTC timestamps")
    bad = parsed.is_null()
    if bad.any():
        at = int(bad.arg_max() or 0)
        raise DataError(
            f"{where(at)}: {column.name!r} is {column[at]!r}, not a time\nwrite times like 2024-01-31 23:59:00.5 (UTC)"
        )
    return parsed.to_numpy()


def _physical(column: pl.Series) -> pl.Series:
    """A zoned datetime is UTC inside already."""
    unit = column.dtype.time_unit  # type: ignore[attr-defined]
    return column.to_physical() * {"ns": 1, "us": 1_000, "ms": 1_000_000}[unit]


def _epoch(numbers: pl.Series) -> pl.Series:
    largest = int(numbers.abs().max() or 0)  # type: ignore[arg-type]
    return numbers * next(unit for limit, unit in _EPOCHS if largest < limit)


def _text(column: pl.Series) -> pl.Series:
    part = column.str.extract_groups(_TIME).struct.unnest()
    number = part.select(
        *(pl.nth(i).cast(pl.Int64, strict=False).fill_null(0).alias(n) for i, n in ((3, "h"), (4, "m"), (5, "s"))),
        pl.nth(6).str.pad_end(9, "0").cast(pl.Int64, strict=False).fill_null(0).alias("ns"),
        pl.concat_str(pl.nth(0, 1, 2), separator="-").str.to_date("%Y-%m-%d", strict=False).alias("day"),
        (
            pl.when(pl.nth(7) == "-").then(-1).otherwise(1)
            * (pl.nth(8).cast(pl.Int64).fill_null(0) * 60 + pl.nth(9).cast(pl.Int64).fill_null(0))
        ).alias("offset"),  # minutes east of UTC
    )
    valid = (pl.col("h") < 24) & (pl.col("m") < 60) & (pl.col("s") < 60)
    seconds = pl.col("h") * 3600 + (pl.col("m") - pl.col("offset")) * 60 + pl.col("s")
    day = pl.col("day").cast(pl.Datetime("ns"), strict=False).cast(pl.Int64)  # null beyond 1677 to 2262
    return number.select(pl.when(valid).then(day + seconds * 1_000_000_000 + pl.col("ns")).alias("t"))["t"]


def floats(column: pl.Series, where: Where) -> np.ndarray:
    """float64 [n]; an empty cell is NaN. Raises DataError for text, a NaN that is written out, and infinity."""
    if column.dtype == pl.String:
        number = column.str.strip_chars().cast(pl.Float64, strict=False)
    elif column.dtype.is_numeric():
        number = column.cast(pl.Float64)
    else:
        raise DataError(f"{where(0)}: column {column.name!r} of type {column.dtype} is no number\ngive plain numbers")
    bad = (number.is_null() & column.is_not_null()) | ~number.is_finite().fill_null(True)
    if bad.any():
        at = int(bad.arg_max() or 0)
        raise DataError(
            f"{where(at)}: {column.name!r} is {column[at]!r}, not a number\n"
            "correct or drop the row; leave a cell empty where a side is not quoted"
        )
    return number.fill_null(float("nan")).to_numpy()


def sizes(column: pl.Series, where: Where) -> np.ndarray:
    """int32 [n] lots; an empty cell is 0, unknown. Raises DataError for negative and fractional sizes."""
    size = np.nan_to_num(floats(column, where))
    bad = (size < 0) | (size != np.rint(size)) | (size > 2**31 - 1)
    if bad.any():
        at = int(np.argmax(bad))
        why = "negative" if size[at] < 0 else "not a whole number of lots below 2**31"
        raise DataError(f"{where(at)}: {column.name!r} is {size[at]:g}, {why}\ngive sizes in whole lots")
    return size.astype(np.int32)


def volumes(column: pl.Series, where: Where, signed: bool = False) -> np.ndarray:
    """int64 [n] lots traded, rounded to whole lots; an empty cell is 0."""
    volume = np.nan_to_num(floats(column, where))
    if not signed and (volume < 0).any():
        at = int(np.argmax(volume < 0))
        raise DataError(f"{where(at)}: {column.name!r} is {volume[at]:g}, negative\ncorrect or drop the row")
    return np.rint(volume).astype(np.int64)
