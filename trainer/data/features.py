"""Features: one causal row of F float32 a book row. F = 56 for ten levels; the table `columns()` is the definition.

Row t reads rows <= t of its own session only: state starts afresh at a session's first row, where all that compares
with the row before is 0. A `FeatureStream` carries its state from chunk to chunk, so the chunking never changes a bit.
NaN and infinity never appear; a level that is not there counts as one tick beyond the last one, with size 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np

from trainer.data.frame import UNDEF, BookFrame
from trainer.errors import DataError

DEPTHS = (1, 5, 10)  # levels summed by an imbalance
FLOW_HALF_LIFE = 5  # rows
VOLATILITY_HALF_LIVES = (5, 15, 30)  # rows
EWMA_SPAN = 10  # half-lives that an EWMA counts as look-back: what lies beyond weighs less than 1/1000
DAY_NS = 86_400_000_000_000

_HALF_LIVES = (FLOW_HALF_LIFE, *VOLATILITY_HALF_LIVES)
_DECAY = tuple(0.5 ** (1.0 / h) for h in _HALF_LIVES)


@dataclass(frozen=True)
class Column:
    """One feature. `look_back`: rows before t that it reads. `std_floor`: the least that divides it when normalised."""

    name: str
    formula: str
    look_back: int
    std_floor: float
    source: str = ""


@cache
def columns(levels: int) -> tuple[Column, ...]:
    """The table, in column order.

    Formulas: p price in ticks, q size in lots, m = (p_bid0 + p_ask0) / 2, symlog x = sign(x) ln(1 + |x|).
    """
    ofi = "Cont, Kukanov and Stoikov, J. Financial Econometrics 12(1), 2014, section 2"
    table = [Column(f"bid_px_{k:02d}", f"p_bid{k} - m, ticks", 0, 0.1) for k in range(levels)]
    table += [Column(f"ask_px_{k:02d}", f"p_ask{k} - m, ticks", 0, 0.1) for k in range(levels)]
    table += [Column(f"bid_sz_{k:02d}", f"ln(1 + q_bid{k})", 0, 0.1) for k in range(levels)]
    table += [Column(f"ask_sz_{k:02d}", f"ln(1 + q_ask{k})", 0, 0.1) for k in range(levels)]
    table += [
        Column("spread", "p_ask0 - p_bid0, ticks", 0, 0.1),
        Column(
            "microprice",
            "(p_bid0 q_ask0 + p_ask0 q_bid0) / (q_bid0 + q_ask0) - m, ticks",
            0,
            0.05,
            "the size-weighted mid of Stoikov, Quantitative Finance 18(12), 2018, section 1",
        ),
    ]
    for depth in DEPTHS:
        if depth <= levels:
            text = f"(B - A) / (B + A), B and A the sizes of the first {depth} levels; 0 when both are 0"
            table.append(Column(f"imbalance_{depth}", text, 0, 0.05))
    e = "e = q_bid [p_bid >= p_bid'] - q_bid' [p_bid <= p_bid'] - q_ask [p_ask <= p_ask'] + q_ask' [p_ask >= p_ask']"
    table += [
        Column("ofi", f"symlog e, {e}, ' the row before, best level", 1, 0.1, ofi),
        Column(
            f"ofi_ewma_{FLOW_HALF_LIFE}",
            f"symlog of the EWMA of e, half-life {FLOW_HALF_LIFE} rows",
            EWMA_SPAN * FLOW_HALF_LIFE + 1,
            0.1,
            ofi,
        ),
        Column("flow", "symlog of the signed volume since the row before", 1, 0.1),
        Column("move", "symlog of m - m', ticks", 1, 0.1),
    ]
    for h in VOLATILITY_HALF_LIVES:
        text = f"sqrt of the EWMA of (m - m')^2, half-life {h} rows, ticks"
        table.append(Column(f"volatility_{h}", text, EWMA_SPAN * h + 1, 0.05))
    table += [
        Column("log_gap", "ln(1 + milliseconds since the row before)", 1, 0.1),
        # A clock, not market data: it looks back at no price. Its floors are those of a whole day, so that a train
        # slice of minutes doesn't turn the clock into a trend that leaves its range in the test window.
        Column("day_sin", "sin(2 pi time of day UTC / 24 h)", 0, 0.5),
        Column("day_cos", "cos(2 pi time of day UTC / 24 h)", 0, 0.5),
        Column("session_time", "ln(1 + minutes since the session's first row)", 0, 2.0),
    ]
    return tuple(table)


def look_back(levels: int) -> int:
    """Rows before t that the features of row t read."""
    return max(column.look_back for column in columns(levels))


class FeatureStream:
    """Features of consecutive frames of one series."""

    def __init__(self, levels: int):
        self.levels = levels
        self.rows = 0
        self._last = np.zeros(8, np.int64)  # started, session, first ts, then ts, bid, ask, bid size, ask size before
        self._sums = np.zeros((len(_DECAY), 2))  # weighted sum and sum of weights of each EWMA

    def push(self, frame: BookFrame) -> np.ndarray:
        """Features float32 [n, F] of the next n rows. Raises DataError at a row without a best bid or ask."""
        missing = (frame.bid_px[:, 0] == UNDEF) | (frame.ask_px[:, 0] == UNDEF)
        if missing.any():
            raise DataError(
                f"row {self.rows + int(missing.argmax())} of the series has no best bid or no best ask\n"
                "drop rows with an empty side of the book before features are made"
            )
        out = np.empty((len(frame), len(columns(self.levels))), np.float32)
        book = (frame.bid_px, frame.ask_px, frame.bid_sz, frame.ask_sz)
        _rows(frame.ts, *book, frame.signed_volume, frame.session, self._last, self._sums, out)
        self.rows += len(frame)
        return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _symlog(x):
    x = float(x)  # abs(-2**31) overflows an int32
    return math.copysign(math.log1p(abs(x)), x)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _ewma(sums, i, value):
    """Adds `value` and returns the weighted mean so far: unbiased from the first row on, unlike a start at 0."""
    sums[i, 0] = _DECAY[i] * sums[i, 0] + value
    sums[i, 1] = _DECAY[i] * sums[i, 1] + 1.0
    return sums[i, 0] / sums[i, 1]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _side(px, sz, mid, away, px_out, sz_out):
    """Distance to the mid and log size of every level of one side of one row; `away` is -1 for bids, +1 for asks."""
    last = px[0]
    for k in range(len(px)):
        if px[k] != UNDEF:
            last = px[k]
            sz_out[k] = math.log1p(sz[k])
        else:
            last += away
            sz_out[k] = 0.0
        px_out[k] = last - mid


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _imbalances(bid_px, ask_px, bid_sz, ask_sz, out):
    """Writes the depth imbalance of each of DEPTHS that the book has; returns how many."""
    bids, asks, n = 0, 0, 0
    for k in range(len(bid_sz)):
        bids += bid_sz[k] if bid_px[k] != UNDEF else 0
        asks += ask_sz[k] if ask_px[k] != UNDEF else 0
        if k + 1 in DEPTHS:
            out[n] = (bids - asks) / (bids + asks) if bids + asks > 0 else 0.0
            n += 1
    return n


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _order_flow(bid, ask, bid_sz, ask_sz, last):
    """e of the table: what the best level gained by bids and lost by asks, in lots."""
    e = 0
    if bid >= last[4]:
        e += bid_sz
    if bid <= last[4]:
        e -= last[6]
    if ask <= last[5]:
        e -= ask_sz
    if ask >= last[5]:
        e += last[7]
    return e


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rows(ts, bid_px, ask_px, bid_sz, ask_sz, volume, session, last, sums, out):
    lv = bid_px.shape[1]
    for t in range(len(ts)):
        row = out[t]
        fresh = last[0] == 0 or session[t] != last[1]
        if fresh:
            last[0], last[1], last[2], last[3] = 1, session[t], ts[t], ts[t]
            sums[:] = 0.0
        bid, ask = np.int64(bid_px[t, 0]), np.int64(ask_px[t, 0])
        bq, aq = np.int64(bid_sz[t, 0]), np.int64(ask_sz[t, 0])
        mid = 0.5 * (bid + ask)
        _side(bid_px[t], bid_sz[t], mid, -1, row[:lv], row[2 * lv : 3 * lv])
        _side(ask_px[t], ask_sz[t], mid, 1, row[lv : 2 * lv], row[3 * lv : 4 * lv])
        j = 4 * lv
        row[j] = ask - bid
        row[j + 1] = 0.5 * (ask - bid) * (bq - aq) / (bq + aq) if bq + aq > 0 else 0.0
        j += 2 + _imbalances(bid_px[t], ask_px[t], bid_sz[t], ask_sz[t], row[j + 2 :])
        if fresh:
            row[j : j + 8] = 0.0
        else:
            e = _order_flow(bid, ask, bq, aq, last)
            move = mid - 0.5 * (last[4] + last[5])
            row[j], row[j + 1] = _symlog(e), _symlog(_ewma(sums, 0, e))
            row[j + 2], row[j + 3] = _symlog(volume[t]), _symlog(move)
            for i in range(3):
                row[j + 4 + i] = math.sqrt(_ewma(sums, 1 + i, move * move))
            row[j + 7] = math.log1p(max(ts[t] - last[3], 0) * 1e-6)
        angle = 2.0 * math.pi * (ts[t] % DAY_NS) / DAY_NS
        row[j + 8], row[j + 9] = math.sin(angle), math.cos(angle)
        row[j + 10] = math.log1p(max(ts[t] - last[2], 0) / 60e9)
        last[3], last[4], last[5], last[6], last[7] = ts[t], bid, ask, bq, aq
