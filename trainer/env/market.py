"""What kernels read of a market: prices, fill rows, session bounds, gaps and labels as flat arrays on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.env_step import UNDEF
from trainer.config import StudyConfig
from trainer.device.fields import Field
from trainer.errors import DataError

Norm = tuple[np.ndarray, np.ndarray]  # mean and std, float32 [F]


def market_arrays(
    market: Any, cfg: StudyConfig, norm: Norm, fit: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """Host arrays of `market` (docs/architecture.md, "Market arrays"). Rows keep their numbers.

    `norm` and `fit`, the rows [a, b) that give the median time gap (all rows by default), come from the train slice.
    Raises DataError for a row without bid or ask.
    """
    bid_px, ask_px = _int32(market.bid_px), _int32(market.ask_px)
    undefined = np.flatnonzero((bid_px[:, 0] == UNDEF) | (ask_px[:, 0] == UNDEF))
    if undefined.size:
        raise DataError(
            f"row {undefined[0]} of the market has no best bid or no best ask ({undefined.size} such rows)\n"
            "drop one-sided states when the data are read"
        )
    ts = np.asarray(market.ts, np.int64)
    session = np.asarray(market.session)
    first, last = session_bounds(session)
    mid2 = bid_px[:, 0] + ask_px[:, 0]
    mean, std = (np.asarray(part, np.float32) for part in norm)
    return {
        "features": np.asarray(market.features, np.float32),
        "bid_px": bid_px,
        "ask_px": ask_px,
        "bid_sz": _int32(market.bid_sz),
        "ask_sz": _int32(market.ask_sz),
        "session": _int32(session),
        "signed_volume": _int32(market.signed_volume),
        "mid2": mid2,
        "fill_row": fill_rows(ts, cfg.env.latency_ms, cfg.env.latency_rows),
        "first": first,
        "last": last,
        "ts_gap": time_gaps(ts, first, fit),
        "aux_label": aux_labels(mid2, ask_px[:, 0] - bid_px[:, 0], last, cfg.data.label_rows),
        "mean": mean,
        # A column that never changes carries nothing: it becomes 0, not a division by 0.
        "std": np.where(std > 0, std, np.float32(1)),
    }


def market_fields(
    market: Any, cfg: StudyConfig, norm: Norm, fit: tuple[int, int] | None = None, prefix: str = "market"
) -> list[Field]:
    """The same as device arrays that never change."""
    return fields_of(market_arrays(market, cfg, norm, fit), prefix)


def fields_of(arrays: dict[str, np.ndarray], prefix: str = "market") -> list[Field]:
    """Fields of kind "data" for arrays of `market_arrays`."""
    return [Field(f"{prefix}.{name}", a.shape, str(a.dtype), "data", a) for name, a in arrays.items()]


def session_bounds(session: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last row of each row's session, int32 [N] each. session [N] changes where one ends."""
    heads = np.flatnonzero(np.diff(session, prepend=session[:1] - 1))
    lengths = np.diff(np.append(heads, len(session)))
    first = np.repeat(heads, lengths)
    return first.astype(np.int32), (first + np.repeat(lengths, lengths) - 1).astype(np.int32)


def fill_rows(ts: np.ndarray, latency_ms: float, latency_rows: int = 0) -> np.ndarray:
    """Row on which an order decided on each row fills, int32 [N]; N when the series ends before.

    The first row at least the latency later, and never the same row: rows that share a timestamp are one moment, in
    which nobody can react. ts int64 [N] ns, not decreasing. latency_rows > 0 counts rows instead.
    """
    n = len(ts)
    rows = np.arange(n, dtype=np.int64)
    if latency_rows:
        return np.minimum(rows + latency_rows, n).astype(np.int32)
    due = np.searchsorted(ts, ts + round(latency_ms * 1e6), side="left")
    return np.minimum(np.maximum(due, rows + 1), n).astype(np.int32)


def time_gaps(ts: np.ndarray, first: np.ndarray, fit: tuple[int, int] | None = None) -> np.ndarray:
    """log1p(time since the row before / median gap), float32 [N]: the CfC's elapsed time.

    The median is over the gaps above 0 that end within the rows `fit`. The head of a session has no row before it: its
    gap counts as the median.
    """
    gap = np.diff(ts, prepend=ts[:1]).astype(np.float64)
    head = first == np.arange(len(ts))
    inside = np.zeros(len(ts), np.bool_)
    inside[slice(*fit) if fit else slice(None)] = True
    known = gap[inside & ~head & (gap > 0)]
    median = float(np.median(known)) if known.size else 1.0
    gap[head] = median
    return np.log1p(gap / median).astype(np.float32)


def aux_labels(mid2: np.ndarray, spread: np.ndarray, last: np.ndarray, rows: int) -> np.ndarray:
    """Direction of the mid over the next `rows` rows, int8 [N]: 0 down, 1 flat, 2 up, -1 unknown (the session ends).

    Flat is a move within half the spread, spread [N] in ticks. mid2 counts half ticks, so moves compare with `spread`.
    """
    n = len(mid2)
    ahead = np.arange(n, dtype=np.int64) + rows
    move = mid2[np.minimum(ahead, n - 1)].astype(np.int64) - mid2
    label = 1 + (move > spread).astype(np.int8) - (move < -spread).astype(np.int8)
    return np.where(ahead <= last, label, -1).astype(np.int8)


def _int32(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array, np.int32)
