"""Order-book replay: market-by-order records -> the best LV levels after every event.

A (add), C (cancel), M (modify) and R (clear) change the book; T (trade), F (fill) and N (none) never do: the exchange
sends the C or M that takes the filled size out. A state is emitted at each record with F_LAST, the last of an event.
Snapshot records build the book and are no states of their own. (Databento, "MBO", conventions of action and flags.)

The book lives in arrays. Orders: open addressing with linear probing, two int64 a slot (id; price, size and side
packed), removal by backward shift, so there are no tombstones. Levels: a sorted array a side with the best level at the
end, where nearly all changes happen, so an insertion moves few elements.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from trainer.data.frame import UNDEF

F_LAST, F_TOB, F_SNAPSHOT, F_MBP = 128, 64, 32, 16
_A, _B, _C, _M, _N, _R, _T, _F = (ord(c) for c in "ABCMNRTF")

# Counters of a replay. UNKNOWN: C or M of an order that was never added; TWICE: A of an id that rests already;
# OVER: C of more than the order holds; EMPTY: A or M without a size, which rests nowhere.
RECORDS, STATES, TRADES, SNAPSHOT, UNKNOWN, TWICE, OVER, EMPTY, ORDERS, BIDS, ASKS = range(11)
COUNTERS = 11
# What stopped a replay, with the record it happened at.
OK, OFF_GRID, NO_SIDE, BAD_SIZE, NOT_ORDERS, NO_START, BAD_ACTION, NO_ID = range(8)
# The carry from chunk to chunk: signed and total volume since the last state, started (0: no snapshot or clear yet),
# whether the record before was part of a snapshot.
SIGNED, VOLUME, STARTED, IN_SNAPSHOT = range(4)

_HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Fibonacci hashing spreads consecutive ids
_MAX_TICK = 2**31 - 1
_MAX_SIZE = 2**30
_SIZE_MASK = np.int64(0x7FFFFFFF)


class Book:
    """An order book fed with records chunk by chunk. `unit` is the tick size in 1e-9."""

    def __init__(self, unit: int, levels: int):
        self.unit, self.levels = unit, levels
        self.counters = np.zeros(COUNTERS, np.int64)
        self.carry = np.zeros(4, np.int64)
        self.table = np.zeros((1 << 12, 2), np.int64)  # slot: id + 1 (0: free), packed order
        self.price: np.ndarray = np.zeros((2, 256), np.int32)  # signed ticks: + bid, - ask, ascending, best last
        self.size: np.ndarray = np.zeros((2, 256), np.int64)
        self.orders: np.ndarray = np.zeros((2, 256), np.int32)

    def clear(self) -> None:
        """Forgets every order and the volume since the last state (a roll to another contract)."""
        self.table[:] = 0
        self.counters[ORDERS:] = 0
        self.carry[:] = 0

    def apply(self, records: np.ndarray) -> tuple[dict[str, np.ndarray], int, int]:
        """Applies DBN MBO records [n]; returns the states at F_LAST, a stop code and the record it stopped at.

        States: `at` int64 [s] (record index), `bid_px`.. int32 [s, LV], `signed`, `volume` int64 [s].
        """
        self._reserve(len(records))
        flags = np.array(records["flags"])
        n = int(((flags & F_LAST) != 0).sum())
        shape = (2, n, self.levels)
        px, sz, ct = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int32)
        at, signed, volume = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        # copies, so that one compiled version serves records of any memory layout, read-only ones too
        order_id, price, size, action, sides = (
            np.array(records[name]) for name in ("order_id", "price", "size", "action", "side")
        )
        columns = order_id.view(np.int64), price, size, flags, action.view(np.uint8), sides.view(np.uint8)
        book = (self.table, self.price, self.size, self.orders, self.counters, self.carry)
        made, code, stopped = _replay(columns, book, (px, sz, ct, at, signed, volume), self.unit)
        states: dict[str, np.ndarray] = {"at": at[:made], "signed": signed[:made], "volume": volume[:made]}
        for side, name in enumerate(("bid", "ask")):
            for kind, array in (("px", px), ("sz", sz), ("ct", ct)):
                states[f"{name}_{kind}"] = array[side, :made]
        return states, code, stopped

    def _reserve(self, n: int) -> None:
        """Room for n more orders and levels, so that the replay never grows anything: the table stays half empty."""
        need = 2 * (int(self.counters[ORDERS]) + n)
        if need > len(self.table):
            table = np.zeros((1 << (need - 1).bit_length(), 2), np.int64)
            _rehash(self.table, table)
            self.table = table
        need = int(self.counters[BIDS : ASKS + 1].max()) + n
        if need > self.price.shape[1]:
            extra = ((0, 0), (0, max(need, 2 * self.price.shape[1]) - self.price.shape[1]))
            self.price, self.size, self.orders = (np.pad(a, extra) for a in (self.price, self.size, self.orders))


def _jit(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True, forceinline=True)(function)


@_jit
def _slot(table: np.ndarray, key: int) -> int:
    """The slot that holds `key`, or the free one where it belongs. The table always has free slots."""
    mask = len(table) - 1
    at = np.int64((np.uint64(key) * _HASH) >> np.uint64(20)) & mask
    while table[at, 0] != key and table[at, 0] != 0:
        at = (at + 1) & mask
    return at  # type: ignore[return-value]


@_jit
def _remove(table: np.ndarray, at: int) -> None:
    """Frees a slot and moves later entries of the run back (Knuth 6.4, algorithm R)."""
    mask = len(table) - 1
    hole, probe = at, at
    while True:
        probe = (probe + 1) & mask
        key = table[probe, 0]
        if key == 0:
            break
        home = np.int64((np.uint64(key) * _HASH) >> np.uint64(20)) & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            table[hole, 0], table[hole, 1] = key, table[probe, 1]
            hole = probe
    table[hole, 0] = 0


@_jit
def _rehash(old: np.ndarray, new: np.ndarray) -> None:
    for i in range(len(old)):
        if old[i, 0] != 0:
            at = _slot(new, old[i, 0])
            new[at, 0], new[at, 1] = old[i, 0], old[i, 1]


@_jit
def _level(price: np.ndarray, n: int, key: int) -> int:
    """The first index of price[:n] (ascending) that is not below `key`, searched from the end and then by halves."""
    low, high = 0, n
    for _ in range(8):
        if high == 0 or price[high - 1] < key:
            return high
        high -= 1
    while low < high:
        middle = (low + high) >> 1
        if price[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _change(book: Any, side: int, tick: int, size: int, orders: int) -> None:
    """Adds size and orders (either may be negative) to a level; an empty level goes."""
    _, price, total, count, counters, _ = book
    n = counters[BIDS + side]
    key = tick if side == 0 else -tick
    at = _level(price[side], n, key)
    if at == n or price[side, at] != key:
        for i in range(n, at, -1):
            price[side, i], total[side, i], count[side, i] = price[side, i - 1], total[side, i - 1], count[side, i - 1]
        price[side, at], total[side, at], count[side, at] = key, 0, 0
        n += 1
    total[side, at] += size
    count[side, at] += orders
    if count[side, at] == 0:
        n -= 1
        for i in range(at, n):
            price[side, i], total[side, i], count[side, i] = price[side, i + 1], total[side, i + 1], count[side, i + 1]
    counters[BIDS + side] = n


@_jit
def _put(book: Any, at: int, key: int, tick: int, size: int, side: int) -> None:
    """A new order into a free slot."""
    table, counters = book[0], book[4]
    table[at, 0] = key
    table[at, 1] = (np.int64(tick) << 32) | (np.int64(size) << 1) | side
    counters[ORDERS] += 1
    _change(book, side, tick, size, 1)


@_jit
def _take(book: Any, at: int, size: int) -> None:
    """`size` off the order in a slot, which goes when nothing is left."""
    table, counters = book[0], book[4]
    packed = table[at, 1]
    side, rests, tick = packed & 1, (packed >> 1) & _SIZE_MASK, packed >> 32
    if size < rests:
        table[at, 1] = packed - (np.int64(size) << 1)
        _change(book, side, tick, -size, 0)
    else:
        _remove(table, at)
        counters[ORDERS] -= 1
        _change(book, side, tick, -rests, -1)


@_jit
def _clear(book: Any) -> None:
    book[0][:] = 0
    for i in (ORDERS, BIDS, ASKS):
        book[4][i] = 0


@_jit
def _change_order(book: Any, action: int, key: int, tick: int, size: int, side: int) -> None:
    """A, C or M. An unknown M is an add; a second A replaces the order: the newest word on it is true."""
    table, counters = book[0], book[4]
    at = _slot(table, key)
    known = table[at, 0] == key
    if action == _C:
        if known:
            rests = (table[at, 1] >> 1) & _SIZE_MASK
            counters[OVER] += size > rests
            _take(book, at, size)
        else:
            counters[UNKNOWN] += 1
        return
    if action == _A:
        counters[TWICE] += known
    else:
        counters[UNKNOWN] += not known
    counters[EMPTY] += size == 0
    if not known:
        if size > 0:
            _put(book, at, key, tick, size, side)
    elif size == 0:
        _take(book, at, _SIZE_MASK)
    else:
        packed = table[at, 1]
        was_side, rests, was_tick = packed & 1, (packed >> 1) & _SIZE_MASK, packed >> 32
        table[at, 1] = (np.int64(tick) << 32) | (np.int64(size) << 1) | side
        if was_tick == tick and was_side == side:
            _change(book, side, tick, size - rests, 0)
        else:
            _change(book, was_side, was_tick, -rests, -1)
            _change(book, side, tick, size, 1)


@_jit
def _emit(book: Any, px: np.ndarray, sz: np.ndarray, ct: np.ndarray, row: int) -> None:
    """The best levels of both sides into row `row` of the [2, n, LV] arrays."""
    _, price, total, count, counters, _ = book
    for side in range(2):
        n = counters[BIDS + side]
        sign = 1 - 2 * side
        for i in range(px.shape[2]):
            j = n - 1 - i
            if j >= 0:
                px[side, row, i] = sign * price[side, j]
                sz[side, row, i] = min(total[side, j], _MAX_TICK)
                ct[side, row, i] = count[side, j]
            else:
                px[side, row, i], sz[side, row, i], ct[side, row, i] = UNDEF, 0, 0


@_jit
def _replay(columns: Any, book: Any, out: Any, unit: int) -> tuple[int, int, int]:
    """Applies all records; returns (states written, stop code, record it stopped at)."""
    order_id, price, size, flags, action, side = columns
    counters, carry = book[4], book[5]
    px, sz, ct, at, signed, volume = out
    made = 0
    for i in range(len(flags)):
        counters[RECORDS] += 1
        act, flag = action[i], flags[i]
        snapshot = (flag & F_SNAPSHOT) != 0
        if snapshot and carry[IN_SNAPSHOT] == 0:  # a snapshot is the whole book: nothing from before it stays
            _clear(book)
            carry[STARTED] = 1
        carry[IN_SNAPSHOT] = snapshot
        counters[SNAPSHOT] += snapshot
        if act == _A or act == _C or act == _M:
            if flag & (F_TOB | F_MBP):
                return made, NOT_ORDERS, i
            if side[i] != _A and side[i] != _B:
                return made, NO_SIDE, i
            tick = price[i] // unit
            if act != _C and (tick * unit != price[i] or abs(tick) > _MAX_TICK):
                return made, OFF_GRID, i
            if size[i] > _MAX_SIZE:
                return made, BAD_SIZE, i
            if order_id[i] == -1:  # all bits set; its key would be the mark of a free slot
                return made, NO_ID, i
            unknown = counters[UNKNOWN]
            _change_order(book, act, order_id[i] + 1, tick, np.int64(size[i]), np.int64(side[i] == _A))
            if carry[STARTED] == 0 and counters[UNKNOWN] > unknown:
                return made, NO_START, i
        elif act == _T:
            counters[TRADES] += 1
            carry[VOLUME] += size[i]
            if side[i] == _B:
                carry[SIGNED] += size[i]
            elif side[i] == _A:
                carry[SIGNED] -= size[i]
        elif act == _R:
            _clear(book)
            carry[STARTED] = 1
        elif act != _F and act != _N:
            return made, BAD_ACTION, i
        if flag & F_LAST:
            if not snapshot:
                _emit(book, px, sz, ct, made)
                at[made], signed[made], volume[made] = i, carry[SIGNED], carry[VOLUME]
                carry[SIGNED], carry[VOLUME] = 0, 0
                made += 1
    counters[STATES] += made
    return made, OK, -1
