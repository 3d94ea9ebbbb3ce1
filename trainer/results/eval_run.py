"""What an evaluation hands over, and the round trips read out of it.

An evaluation walks the test window once, session by session, with one lane for the policy and one for each baseline.
Money is int64 in 1/1000 tick. Element i of every array belongs to the i-th decision *after* its step: `ts[i]`, `row[i]`
are the row reached by the step, where fills of this step happened and equity is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.env_step import MILLI, Action
from trainer.errors import FoxhuntError

ACTION_NAMES = tuple(action.name.lower().replace("_", " ") for action in Action)
ENDS = ("order", "trailing stop", "session end", "drawdown limit", "flip")  # index = Fills.reason; flip: derived


@dataclass(frozen=True)
class Fills:
    """Executions in time order, several may share a step. All arrays [n]."""

    at: np.ndarray  # int64: index of the decision after whose step it is booked, ascending
    lots: np.ndarray  # int64: signed change of position, never 0
    notional: np.ndarray  # int64: sum of lots * price, signed like lots, 1/1000 tick
    fee: np.ndarray  # int64: >= 0, 1/1000 tick
    spread: np.ndarray  # int64: cost against the mid at the fill, 1/1000 tick
    reason: np.ndarray  # int8: index into ENDS[:4]


@dataclass(frozen=True)
class Lane:
    """One account over N decisions. `equity = gross - fee_paid - spread_paid`, all cumulative from 0."""

    equity: np.ndarray  # int64 [N]: cash + position * mid (net)
    fee_paid: np.ndarray  # int64 [N]
    spread_paid: np.ndarray  # int64 [N]
    position: np.ndarray  # int32 [N]: lots after the step
    action: np.ndarray  # int8 [N]: action after masking
    ordered: np.ndarray  # int8 [N]: 1 where the decision placed a position order
    fills: Fills

    @property
    def gross(self) -> np.ndarray:
        """PnL at the mid without any cost, int64 [N]."""
        return self.equity + self.fee_paid + self.spread_paid


@dataclass(frozen=True)
class EvalRun:
    """One sequential pass over the test window of a fold. Every lane is flat after its last decision."""

    fold: int
    ts: np.ndarray  # int64 [N], ns UTC, ascending
    row: np.ndarray  # int64 [N], row of the series
    session: np.ndarray  # int32 [N]
    policy: Lane
    baselines: dict[str, Lane]  # "flat", "buy and hold", "random", "imbalance"
    entropy_frac: np.ndarray  # float32 [N]: H / log(valid actions); NaN where only one action was valid
    q_agree: np.ndarray  # int8 [N]: 1 where the masked argmax of Q is the policy's action
    meta: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """The accounting identities that the figures rest on. Raises FoxhuntError (a bug in what made this run)."""
        n = len(self.ts)
        for name, lane in {"policy": self.policy, **self.baselines}.items():
            where = f"evaluation of fold {self.fold}, lane {name!r}"
            for part in ("equity", "fee_paid", "spread_paid", "position", "action", "ordered"):
                if len(getattr(lane, part)) != n:
                    raise FoxhuntError(
                        f"{where}: {part} has {len(getattr(lane, part))} of {n} decisions\nreport this as a bug"
                    )
            _check_fills(lane, n, where)
        if n and np.any(np.diff(self.ts) < 0):
            raise FoxhuntError(f"evaluation of fold {self.fold}: times go back\nreport this as a bug")


def _check_fills(lane: Lane, n: int, where: str) -> None:
    f = lane.fills
    for values, total, what in (
        (f.lots, lane.position, "lots and position"),
        (f.fee, lane.fee_paid, "fees"),
        (f.spread, lane.spread_paid, "spread costs"),
    ):
        booked = np.zeros(n, np.int64)
        np.add.at(booked, f.at, values)
        wrong = np.flatnonzero(np.cumsum(booked) != total)
        if len(wrong):
            raise FoxhuntError(f"{where}: {what} of fills and path differ at decision {wrong[0]}\nreport this as a bug")
    if n and lane.position[-1] != 0:
        raise FoxhuntError(f"{where}: ends with {lane.position[-1]} lots open\nreport this as a bug")
    if n and -int(f.notional.sum() + f.fee.sum()) != int(lane.equity[-1]):
        raise FoxhuntError(f"{where}: cash of the fills and equity differ at the end\nreport this as a bug")


def fills_from_path(
    position: np.ndarray, cash: np.ndarray, fee_paid: np.ndarray, spread_paid: np.ndarray, reason: np.ndarray
) -> Fills:
    """Fills of a lane with at most one fill a step, from its path [N]: all start at 0, values are those after the step.

    A step that moved cash without moving the position holds two fills, which the path can't tell apart: FoxhuntError.
    """
    lots = np.diff(position.astype(np.int64), prepend=0)
    fee = np.diff(fee_paid.astype(np.int64), prepend=0)
    notional = -np.diff(cash.astype(np.int64), prepend=0) - fee
    hidden = np.flatnonzero((lots == 0) & ((notional != 0) | (fee != 0)))
    if len(hidden):
        raise FoxhuntError(f"decision {hidden[0]}: two fills in one step; list them one by one\nreport this as a bug")
    at = np.flatnonzero(lots)
    spread = np.diff(spread_paid.astype(np.int64), prepend=0)
    return Fills(at, lots[at], notional[at], fee[at], spread[at], reason[at].astype(np.int8))


@dataclass(frozen=True)
class Trades:
    """Round trips (flat to flat, or up to a flip) in the order of their ends. Arrays [n], money int64 1/1000 tick."""

    entry_at: np.ndarray  # int64: index of the decision of the first fill
    exit_at: np.ndarray  # int64: of the last fill
    side: np.ndarray  # int8: +1 long, -1 short
    lots: np.ndarray  # int64: lots opened in all
    entry_price: np.ndarray  # float64: mean fill price, ticks
    exit_price: np.ndarray  # float64
    fees: np.ndarray
    spread: np.ndarray
    net: np.ndarray
    ended: np.ndarray  # int8: index into ENDS

    @property
    def gross(self) -> np.ndarray:
        return self.net + self.fees + self.spread

    def __len__(self) -> int:
        return len(self.net)


class _Open:
    """Sums of the round trip that is open: lots, notional, fee, spread of its entering and leaving fills."""

    def __init__(self, at: int, side: int):
        self.at, self.side = at, side
        self.lots_in = self.notional_in = self.lots_out = self.notional_out = self.fee = self.spread = 0

    def add(self, lots: int, notional: int, fee: int, spread: int) -> None:
        self.fee, self.spread = self.fee + fee, self.spread + spread
        if lots * self.side > 0:
            self.lots_in, self.notional_in = self.lots_in + lots, self.notional_in + notional
        else:
            self.lots_out, self.notional_out = self.lots_out + lots, self.notional_out + notional

    def close(self, at: int, ended: int) -> tuple[Any, ...]:
        net = -(self.notional_in + self.notional_out) - self.fee
        prices = self.notional_in / self.lots_in / MILLI, self.notional_out / self.lots_out / MILLI
        return self.at, at, self.side, abs(self.lots_in), *prices, self.fee, self.spread, net, ended


_TRADE_DTYPES: Sequence[Any] = (
    np.int64,
    np.int64,
    np.int8,
    np.int64,
    np.float64,
    np.float64,
    np.int64,
    np.int64,
    np.int64,
    np.int8,
)


def build_trades(fills: Fills) -> Trades:
    """Round trips of a lane. The fill of a flip is split by lots into an end and a start; the parts add up exactly."""
    done: list[tuple[Any, ...]] = []
    position, trip = 0, None
    columns = (fills.at, fills.lots, fills.notional, fills.fee, fills.spread, fills.reason)
    for at, lots, notional, fee, spread, reason in zip(*(c.tolist() for c in columns)):
        if trip is not None and position * (position + lots) < 0:
            part = abs(position) / abs(lots)
            out = tuple(round(x * part) for x in (notional, fee, spread))
            trip.add(-position, *out)
            done.append(trip.close(at, ENDS.index("flip")))
            lots, notional, fee, spread = lots + position, notional - out[0], fee - out[1], spread - out[2]
            position, trip = 0, None
        if trip is None:
            trip = _Open(at, 1 if lots > 0 else -1)
        trip.add(lots, notional, fee, spread)
        position += lots
        if position == 0:
            done.append(trip.close(at, reason))
            trip = None
    columns_out = zip(*done) if done else [()] * len(_TRADE_DTYPES)
    return Trades(*(np.array(c, dtype) for c, dtype in zip(columns_out, _TRADE_DTYPES)))
