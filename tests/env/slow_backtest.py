"""A backtest in plain Python, lot by lot, written from the rules of the environment: the oracle of `env_step`.

All money is a Python integer in 1/1000 tick. Nothing here is shared with the kernel but the numbers of the actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tests.env.books import UNDEF, Book

TARGET_ACTIONS = (0, 1, 5, 6)


@dataclass
class Settings:
    small: int = 1
    large: int = 2
    fee: int = 100
    trails: tuple[int, int, int] = (4, 8, 16)
    inventory_penalty: float = 0.3
    message_cost: float = 0.2
    drawdown: int = 500_000
    episode_len: int = 128

    def wanted(self, action: int) -> int | None:
        """Position that an action asks for; None when it asks for none."""
        half = self.large // 2
        table = {0: -self.large, 1: -self.small, 3: 0, 4: 0, 5: self.small, 6: self.large, 9: half, 10: -half}
        return table.get(action)


@dataclass
class Order:
    target: int
    due: int  # row


@dataclass
class Outcome:
    """What one step returns."""

    reward: float = 0.0
    valid: bool = True
    ordered: bool = False
    action_done: int = 2
    closed: bool = False
    closed_pnl: int = 0
    closed_rows: int = 0
    closed_lots: int = 0
    filled: int = 0
    fee_paid: int = 0
    spread_paid: int = 0


@dataclass
class Backtest:
    book: Book
    settings: Settings
    row: int
    end_row: int
    opened_row: int = -1
    started_row: int = -1
    position: int = 0
    cash: int = 0
    peak: int = 0
    round_trip_start: int = 0  # cash when the position was last flat
    order: Order | None = None
    trail: int | None = None  # index of the stop's distance; None: no stop
    best: int = 0
    done: int = 0
    lots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started_row = self.row

    # -- prices --
    def mid2(self, row: int) -> int:
        return self.book.bid_px[row][0] + self.book.ask_px[row][0]

    def equity(self) -> int:
        return self.cash + self.position * self.mid2(self.row) * 500

    def closing_touch(self) -> int:
        return (self.book.bid_px if self.position > 0 else self.book.ask_px)[self.row][0]

    def lot_prices(self, buy: bool, n: int) -> list[int]:
        """Prices of n lots in the order in which they fill."""
        prices, sizes = (
            (self.book.ask_px[self.row], self.book.ask_sz[self.row])
            if buy
            else (self.book.bid_px[self.row], self.book.bid_sz[self.row])
        )
        filled: list[int] = []
        last = None
        for price, size in zip(prices, sizes):
            if price == UNDEF:
                break
            last = price
            shown = n if size == 0 else size
            filled += [price] * min(shown, n - len(filled))
        assert last is not None
        worse = last + 1 if buy else last - 1
        return filled + [worse] * (n - len(filled))

    # -- what may be done --
    def valid_actions(self) -> set[int]:
        s, p = self.settings, self.position
        valid = {2}
        if self.order is None:
            valid |= {a for a in TARGET_ACTIONS if s.wanted(a) != p}
            if p > 0:
                valid.add(3)
            if p < 0:
                valid.add(4)
            if p == s.large:
                valid.add(9)
            if p == -s.large:
                valid.add(10)
        same_side = self.order is None or self.order.target * p > 0
        if p and same_side:
            if self.trail != 0:
                valid.add(7)
            if self.trail is not None:
                valid.add(8)
        return valid

    # -- a step --
    def step(self, action: int) -> Outcome:
        out = Outcome()
        if action not in self.valid_actions():
            action = 2
        out.action_done = action
        wanted = self.settings.wanted(action)
        if wanted is not None:
            out.ordered = True
            self.order = Order(wanted, self.book.fill_row[self.row])
        elif action == 7:
            self.trail = 2 if self.trail is None else self.trail - 1
        elif action == 8:
            assert self.trail is not None
            self.trail = None if self.trail == 2 else self.trail + 1

        before = self.equity()
        carried = self.position
        self.row += 1
        if self.peak - self.equity() >= self.settings.drawdown:
            self.done = 2
        elif self.row == self.end_row or self.row - self.started_row == self.settings.episode_len:
            self.done = 1
        if self.done:
            self.order = None
            self.trade_to(0, out)
        elif self.order is not None and self.order.due <= self.row:
            target, self.order = self.order.target, None
            self.trade_to(target, out)
        self.watch_stop()
        self.peak = max(self.peak, self.equity())
        s = self.settings
        message = s.message_cost if action != 2 else 0.0
        out.reward = (self.equity() - before) / 1000 - s.inventory_penalty * carried**2 - message
        return out

    def trade_to(self, target: int, out: Outcome) -> None:
        n = abs(target - self.position)
        buy = target > self.position
        for price in self.lot_prices(buy, n):
            direction = 1 if buy else -1
            self.cash -= direction * price * 1000 + self.settings.fee
            out.fee_paid += self.settings.fee
            out.spread_paid += direction * (2 * price - self.mid2(self.row)) * 500
            out.filled += direction
            if self.position * direction >= 0:
                if self.position == 0:
                    self.opened_row, self.best, self.trail = self.row, 0, None
                self.position += direction
                continue
            if not out.closed_lots:
                out.closed_lots = self.position - (out.filled - direction)
            self.position += direction
            if self.position == 0:
                out.closed = True
                out.closed_pnl = self.cash - self.round_trip_start
                out.closed_rows = self.row - self.opened_row
                self.round_trip_start = self.cash
        if not out.closed:
            out.closed_lots = 0
        if self.position and self.opened_row == self.row:
            self.best = self.closing_touch()
        if self.position == 0:
            self.trail = None

    def watch_stop(self) -> None:
        if self.position == 0:
            return
        touch = self.closing_touch()
        self.best = max(self.best, touch) if self.position > 0 else min(self.best, touch)
        if self.trail is None or self.order is not None:
            return
        if abs(self.best - touch) >= self.settings.trails[self.trail]:
            self.order = Order(0, self.book.fill_row[self.row])

    def private(self) -> list[float]:
        s = self.settings
        widest = s.trails[2]
        given = abs(self.best - self.closing_touch()) if self.position else 0
        left = math.inf if self.trail is None else max(s.trails[self.trail] - given, 0)
        pnl = (self.equity() - self.round_trip_start) / 1000
        held = self.row - self.opened_row if self.position else 0
        return [
            self.position / s.large,
            (self.order.target if self.order else self.position) / s.large,
            (3 if self.trail is None else self.trail) / 3,
            min(given / widest, 1),
            min(left / widest, 1),
            pnl / (8 + abs(pnl)),
            min(math.log(1 + held) / math.log(1 + s.episode_len), 1),
            min((self.peak - self.equity()) / s.drawdown, 1),
        ]
