"""One step of B backtests: mask, order, latency, fill, fees, trailing stop, equity, reward, episode end, autoreset.

Money is int64 in 1/1000 tick and prices are int32 ticks, so every backend agrees to the last unit; only `reward` and
`private` are reals. Each backtest depends on its own lane alone: on CUDA one thread runs one lane, and what is
written here as a subset of lanes (orders that fill, lanes that restart) is an `if`.

The order of events, from the row t that was seen to the next row r = t + 1:

1. The action is decided on row t. A masked one is a hold. A position order names the position wanted afterwards
   (`target`) and is due on `fill_row[t]`, never on row t. The order on its way can't be called back: while
   `target != position` no other order is placed, by the agent or by the stop.
2. Row r closes. The position carried to it is marked at r's mid. A fall of `drawdown` from the equity peak ends the
   episode (done 2), as do the last row and the episode's length (done 1). Fills of row r count from row r + 1 on.
3. Trade on r's book: on a final row the position is closed and an order still on its way is dropped; else an order that
   is due fills. The opposite side is walked from the touch; a size of 0 is unlimited; what is left beyond the last
   known level fills one tick beyond it.
4. The stop follows the best closing touch (bid of a long, ask of a short) since the position was opened. When the touch
   has given back the trail distance at r's close, the exit order goes out and fills on `fill_row[r]`: what row r
   showed can't have been acted on before. A new position (from flat or by a flip) starts with no stop; adding to one
   or halving it keeps the stop.
5. reward = change of equity in ticks - inventory_penalty * (lots carried to r)^2 - message_cost * [not a hold].

Autoreset is NEXT_STEP (Gymnasium's term): the step after a final one ignores its action, starts a new episode, earns 0
and has valid = 0. A lane whose start row was given runs once, then stands on its final row with valid = 0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from kernels.philox import Purpose, counter
from kernels.spec import REAL, Arg, Kernel, grid_stride


class Action(IntEnum):
    """The eleven actions, in the order of the policy's and the Q head's outputs."""

    SHORT_LARGE = 0
    SHORT_SMALL = 1
    HOLD = 2
    FLAT_FROM_LONG = 3
    FLAT_FROM_SHORT = 4
    LONG_SMALL = 5
    LONG_LARGE = 6
    TRAIL_TIGHTEN = 7
    TRAIL_LOOSEN = 8
    HALF_FLAT_LONG = 9
    HALF_FLAT_SHORT = 10


# Plain integers for array expressions: NumPy converts an enum member slowly.
HOLD, TIGHTEN, LOOSEN = int(Action.HOLD), int(Action.TRAIL_TIGHTEN), int(Action.TRAIL_LOOSEN)
FLAT_FROM_LONG, FLAT_FROM_SHORT = int(Action.FLAT_FROM_LONG), int(Action.FLAT_FROM_SHORT)
HALF_FLAT_LONG, HALF_FLAT_SHORT = int(Action.HALF_FLAT_LONG), int(Action.HALF_FLAT_SHORT)
UNDEF = -(2**31)  # price of a level that is not there
NO_ORDER = -(2**31)  # in `targets`: this action places no position order
NO_STOP = 3  # index of the loosest trail distance
RANDOM, PARKED = -1, -2  # in `start_row`: draw the next start; no further episode
TRUNCATED, DRAWDOWN = 1, 2  # in `done`
MILLI = 1000  # units of money in a tick
HALF_MILLI = 500  # units of money in a half tick: mid2 counts half ticks
PNL_SCALE = 8000.0  # open profit of 8 ticks gives the private value 0.5


def _walk(rows: Any, buy: Any, lots: Any, first: Any, book: tuple[Any, Any, Any, Any]) -> tuple[Any, Any]:
    """Sum of the prices of `lots` lots, and of the `first` lots among them (int64 ticks), on the opposite side.

    rows int32, buy bool, lots and first int64, one entry an order; book = bid_px, ask_px, bid_sz, ask_sz [N, LV].
    """
    bid_px, ask_px, bid_sz, ask_sz = (side.reshape(-1) for side in book)
    levels = book[0].shape[1]
    at = rows.astype(np.int64) * levels
    total, total_first, last = np.zeros((3, len(lots)), np.int64)
    left, left_first = lots, first
    known = np.ones(len(lots), np.bool_)
    for level in range(levels):
        px = np.where(buy, ask_px[at + level], bid_px[at + level])
        size = np.where(buy, ask_sz[at + level], bid_sz[at + level])
        known = known & (px != UNDEF)  # nothing is known behind a level that is not there
        last = np.where(known, px, last)
        take = np.where(size == 0, left, np.minimum(size, left)) * known
        take_first = np.minimum(take, left_first)
        total, total_first = total + take * last, total_first + take_first * last
        left, left_first = left - take, left_first - take_first
        if not left.any():
            return total, total_first
    beyond = np.where(buy, last + 1, last - 1)
    return total + left * beyond, total_first + left_first * beyond


def _restart(lanes: Any, step: Any, seed: int, starts: Any, last: Any, limit_row: Any, start_row: Any) -> Any:
    """Start and end rows of the next episodes of `lanes`. A given start is used once."""
    given = start_row[lanes]
    word = counter(step, lanes.astype(np.uint32), Purpose.RESET, seed)[0]
    pick = (word.astype(np.uint64) * np.uint64(len(starts))) >> np.uint64(32)
    start = np.where(given >= 0, given, starts[pick.astype(np.int64)])
    start_row[lanes] = np.where(given >= 0, PARKED, given)
    return start, np.minimum(last[start], limit_row[lanes])


def _write_mask(mask: Any, position: Any, target: Any, trail: Any, targets: Any, lots_large: int) -> None:
    """Valid actions of the state now seen. An action is valid when it can be carried out and changes something."""
    ok = mask.view(np.bool_)
    np.not_equal(position[:, None], targets, out=ok)
    np.greater(position, 0, out=ok[:, FLAT_FROM_LONG])
    np.less(position, 0, out=ok[:, FLAT_FROM_SHORT])
    np.equal(position, lots_large, out=ok[:, HALF_FLAT_LONG])
    np.equal(position, -lots_large, out=ok[:, HALF_FLAT_SHORT])
    np.logical_and(ok, (position == target)[:, None], out=ok)
    ok[:, HOLD] = True
    stays = position * target > 0  # a stop of a position that is about to be left has no effect
    np.logical_and(stays, trail > 0, out=ok[:, TIGHTEN])
    np.logical_and(stays, trail < NO_STOP, out=ok[:, LOOSEN])


def _write_private(
    private: Any,
    position: Any,
    target: Any,
    trail: Any,
    given_back: Any,
    trail_ticks: Any,
    open_pnl: Any,
    hold_rows: Any,
    fall: Any,
    lots_large: int,
    drawdown_scale: int,
    hold_scale: int,
) -> None:
    """The eight private values, each within [-1, 1] and known at the row's close. Column by column:

    0 position / lots_large
    1 target / lots_large: differs from value 0 while an order is on its way
    2 trail index / 3: 1 is no stop
    3 ticks given back since the best touch / widest trail distance, at most 1
    4 ticks left to the stop / widest trail distance, 0 to 1: 1 is no stop
    5 open profit p of the round trip, net and marked at mid: p / (8 ticks + |p|)
    6 log(1 + rows held) / log(1 + episode_len), at most 1
    7 fall from the equity peak / drawdown_ticks, at most 1

    No value tells the rows left in the episode: that end is not one the market knows, and truncation bootstraps
    (Pardo et al. 2018, Time Limits in Reinforcement Learning, section 4).
    """
    widest = float(trail_ticks[NO_STOP - 1])
    private[:, 0] = position / lots_large
    private[:, 1] = target / lots_large
    private[:, 2] = trail / NO_STOP
    private[:, 3] = np.minimum(given_back / widest, 1.0)
    private[:, 4] = np.minimum(np.maximum(trail_ticks[trail] - given_back, 0) / widest, 1.0)
    private[:, 5] = open_pnl / (PNL_SCALE + np.abs(open_pnl))
    private[:, 6] = np.minimum(np.log1p(hold_rows) / np.log1p(hold_scale), 1.0)
    private[:, 7] = np.minimum(fall / drawdown_scale, 1.0)


def _reference(
    action: Any,
    step: Any,
    mid2: Any,
    fill_row: Any,
    last: Any,
    bid_px: Any,
    ask_px: Any,
    bid_sz: Any,
    ask_sz: Any,
    starts: Any,
    targets: Any,
    trail_ticks: Any,
    fee: Any,
    drawdown: Any,
    episode_rows: Any,
    limit_row: Any,
    start_row: Any,
    row: Any,
    end_row: Any,
    episode_row: Any,
    position: Any,
    target: Any,
    pending_row: Any,
    cash: Any,
    equity: Any,
    peak: Any,
    entry_cash: Any,
    best: Any,
    trail: Any,
    hold_rows: Any,
    done: Any,
    mask: Any,
    reward: Any,
    valid: Any,
    private: Any,
    ordered: Any,
    action_done: Any,
    closed: Any,
    closed_pnl: Any,
    closed_rows: Any,
    closed_lots: Any,
    filled: Any,
    fee_paid: Any,
    spread_paid: Any,
    seed: int,
    lots_large: int,
    inventory_penalty: float,
    message_cost: float,
    drawdown_scale: int,
    hold_scale: int,
) -> None:
    running = done == 0

    # 1. The decision on row t. A lane that is done has no position and no order, so a hold leaves it as it is.
    allowed = mask[np.arange(len(action)), action].view(np.bool_)
    chosen = np.where(allowed & running, action, HOLD)
    wanted = targets[chosen]
    is_order = wanted != NO_ORDER
    np.copyto(target, wanted, where=is_order)
    np.copyto(pending_row, fill_row[row], where=is_order)
    trail += chosen == LOOSEN
    trail -= chosen == TIGHTEN
    alive = running.astype(row.dtype)  # one conversion: adding booleans to integers goes through a buffer
    row += alive
    episode_row += alive
    hold_rows += position != 0
    ordered[...] = is_order
    action_done[...] = chosen
    valid[...] = running
    for output in (closed, closed_pnl, closed_rows, closed_lots, filled, fee_paid, spread_paid):
        output.fill(0)

    if not running.all():
        lanes = np.flatnonzero(~running & (start_row != PARKED))
        row[lanes], end_row[lanes] = _restart(lanes, step, seed, starts, last, limit_row, start_row)
        for state in (episode_row, position, target, hold_rows, cash, equity, peak, entry_cash, done):
            state[lanes] = 0

    # 2. Row r closes: mark the position carried to it, and see whether the episode ends here.
    mid = mid2[row].astype(np.int64) * HALF_MILLI
    carried = position.copy()
    fallen = (peak - (cash + carried * mid) >= drawdown) & running
    final = ((row >= end_row) | (episode_row >= episode_rows)) & running
    ending = fallen | final
    done += ending.view(np.int8)  # TRUNCATED is 1
    done += fallen.view(np.int8)  # DRAWDOWN is 2

    # 3. Trade on r's book.
    due = (target != position) & (pending_row <= row)
    np.copyto(target, 0, where=ending)
    np.copyto(position, target, where=due | ending)
    lots = position - carried
    lanes = lots.nonzero()[0]
    if lanes.size:
        traded, was, goal = lots[lanes].astype(np.int64), carried[lanes].astype(np.int64), position[lanes]
        n, sign = np.abs(traded), np.sign(traded)
        # A position left for flat or for the other side ends a round trip; the rest of a flip opens the next one.
        leaves = (was != 0) & (was * goal <= 0)
        n_close = np.abs(was) * leaves
        total, total_close = _walk(row[lanes], traded > 0, n, n_close, (bid_px, ask_px, bid_sz, ask_sz))
        before, rate, price = cash[lanes], fee[lanes], sign * MILLI
        at_close = before - price * total_close - rate * n_close
        closed[lanes] = leaves
        closed_pnl[lanes] = (at_close - entry_cash[lanes]) * leaves
        closed_rows[lanes] = hold_rows[lanes] * leaves
        closed_lots[lanes] = was * leaves
        entry_cash[lanes] = np.where(leaves, at_close, entry_cash[lanes])
        filled[lanes] = traded
        fee_paid[lanes] = rate * n
        spread_paid[lanes] = sign * (total * MILLI - n * mid[lanes])
        cash[lanes] = before - price * total - rate * n

    # 4. The stop.
    fresh = carried * position <= 0  # flat, just opened, or flipped
    np.copyto(hold_rows, 0, where=fresh)
    np.copyto(trail, NO_STOP, where=fresh)
    side = np.sign(position)
    at = row * np.int64(bid_px.shape[1])
    touch = np.where(side > 0, bid_px.reshape(-1)[at], ask_px.reshape(-1)[at])
    given_back = np.maximum(side * (best - touch), 0) * ~fresh
    best[...] = touch + side * given_back
    hit = (position == target) & (given_back >= trail_ticks[trail]) & (side != 0)
    np.copyto(target, 0, where=hit)
    np.copyto(pending_row, fill_row[row], where=hit)

    # 5. Equity, reward, and what is seen next.
    now = cash + position * mid
    change = now - equity
    equity[...] = now
    np.maximum(peak, now, out=peak)
    reward[...] = change / MILLI - inventory_penalty * (carried * carried) - message_cost * (chosen != HOLD)
    _write_mask(mask, position, target, trail, targets, lots_large)
    _write_private(
        private,
        position,
        target,
        trail,
        given_back,
        trail_ticks,
        now - entry_cash,
        hold_rows,
        peak - now,
        lots_large,
        drawdown_scale,
        hold_scale,
    )


KERNEL = Kernel(
    "env_step",
    args=(
        Arg("action", "int32", "in", "B", "0 to A - 1; a masked one is a hold"),
        Arg("step", "int64", "in", "1", "step counter: the Philox counter of random starts"),
        Arg("mid2", "int32", "in", "N", "bid + ask, half ticks"),
        Arg("fill_row", "int32", "in", "N", "row on which an order decided on this row fills; N: none"),
        Arg("last", "int32", "in", "N", "last row of this row's session"),
        Arg("bid_px", "int32", "in", "N,LV", "ticks, UNDEF where there is no level; the touch is always defined"),
        Arg("ask_px", "int32", "in", "N,LV"),
        Arg("bid_sz", "int32", "in", "N,LV", "lots; 0 at a defined price: unlimited"),
        Arg("ask_sz", "int32", "in", "N,LV"),
        Arg("starts", "int32", "in", "S", "rows on which an episode may start"),
        Arg("targets", "int32", "in", "A", "position that each action wants, lots; NO_ORDER for 2, 7, 8"),
        Arg("trail_ticks", "int32", "in", "4", "stop distances, ticks; the last is the largest int32: no stop"),
        Arg("fee", "int64", "in", "B", "1/1000 tick a lot and side"),
        Arg("drawdown", "int64", "in", "B", "fall from the peak that ends the episode, 1/1000 tick"),
        Arg("episode_rows", "int32", "in", "B", "longest episode"),
        Arg("limit_row", "int32", "in", "B", "last row that this lane may see"),
        Arg("start_row", "int32", "inout", "B", "next start: a row, RANDOM or PARKED"),
        Arg("row", "int32", "inout", "B", "the row whose close is seen"),
        Arg("end_row", "int32", "inout", "B", "final row of the episode"),
        Arg("episode_row", "int32", "inout", "B", "rows since the episode's start"),
        Arg("position", "int32", "inout", "B", "lots, short < 0"),
        Arg("target", "int32", "inout", "B", "lots after the order on its way; the position when there is none"),
        Arg("pending_row", "int32", "inout", "B", "row on which that order fills"),
        Arg("cash", "int64", "inout", "B", "1/1000 tick, as all money"),
        Arg("equity", "int64", "inout", "B", "cash + position x mid"),
        Arg("peak", "int64", "inout", "B", "highest equity of the episode"),
        Arg("entry_cash", "int64", "inout", "B", "cash when the position was last flat"),
        Arg("best", "int32", "inout", "B", "best closing touch since the position was opened, ticks"),
        Arg("trail", "int32", "inout", "B", "index into trail_ticks"),
        Arg("hold_rows", "int32", "inout", "B", "rows since the position was opened"),
        Arg("done", "int8", "inout", "B", "0 no, 1 truncated, 2 drawdown"),
        Arg("mask", "uint8", "inout", "B,A", "valid actions of the state now seen"),
        Arg("reward", REAL, "out", "B", "ticks"),
        Arg("valid", "int8", "out", "B", "0: this step was a reset, or the lane is parked"),
        Arg("private", REAL, "out", "B,8", "private state values, see _write_private"),
        Arg("ordered", "int8", "out", "B", "1: the action placed a position order"),
        Arg("action_done", "int8", "out", "B", "the action after masking"),
        Arg("closed", "int8", "out", "B", "1: a round trip ended on this row"),
        Arg("closed_pnl", "int64", "out", "B", "its net profit after all costs"),
        Arg("closed_rows", "int32", "out", "B", "rows it was held"),
        Arg("closed_lots", "int32", "out", "B", "its position just before the close, lots"),
        Arg("filled", "int32", "out", "B", "lots traded on this row, sold < 0"),
        Arg("fee_paid", "int64", "out", "B"),
        Arg("spread_paid", "int64", "out", "B", "fill prices against mid, paid > 0"),
        Arg("seed", "uint32", "scalar"),
        Arg("lots_large", "int32", "scalar"),
        Arg("inventory_penalty", REAL, "scalar", doc="ticks a lot^2 and row carried"),
        Arg("message_cost", REAL, "scalar", doc="ticks an action that is not a hold"),
        Arg("drawdown_scale", "int64", "scalar", doc="1/1000 tick; scale of private value 7"),
        Arg("hold_scale", "int32", "scalar", doc="rows; scale of private value 6"),
    ),
    reference=_reference,
    launcher=grid_stride("B", block=32),
    tolerance=(1e-6, 1e-5, "integers are exact; the reals take a few float32 operations and one log1p"),
    constants={
        "HOLD": HOLD,
        "TIGHTEN": TIGHTEN,
        "LOOSEN": LOOSEN,
        "FLAT_FROM_LONG": FLAT_FROM_LONG,
        "FLAT_FROM_SHORT": FLAT_FROM_SHORT,
        "HALF_FLAT_LONG": HALF_FLAT_LONG,
        "HALF_FLAT_SHORT": HALF_FLAT_SHORT,
        "UNDEF": UNDEF,
        "NO_ORDER": NO_ORDER,
        "NO_STOP": NO_STOP,
        "START_PARKED": PARKED,
        "MILLI": MILLI,
        "HALF_MILLI": HALF_MILLI,
        "PNL_SCALE": PNL_SCALE,
        "PURPOSE_RESET": int(Purpose.RESET),
    },
)
