"""Prices to int32 ticks, exactly; the tick size inferred where nobody says it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np

from trainer.data.frame import UNDEF
from trainer.errors import DataError

NANO = 1_000_000_000  # DBN prices are int64 in units of 1e-9
NO_PRICE = np.iinfo(np.int64).max  # DBN's undefined price
_MAX_TICKS = 2**31 - 1
_PLACES = 9  # decimals looked at; finer ones are noise of a float
_NOISE = 1e-4  # of a tick: what a float price may be off the grid by rounding (2**31 ticks have 5e-7 in float64)


def decimal_text(value: Decimal) -> str:
    """Plain decimal text without trailing zeros: 0.25, 10, 0.00005."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def tick_text(tick_size: float) -> str:
    """Exact decimal text of a configured tick size: the shortest one that is this float."""
    return decimal_text(Decimal(repr(tick_size)))


class TickGuess:
    """The largest tick that all prices seen are multiples of: their greatest common divisor, in whole 1e-9."""

    def __init__(self) -> None:
        self.gcd = 0
        self.prices = 0

    def add_nano(self, prices: np.ndarray) -> None:
        """int64 prices in 1e-9; undefined ones are skipped."""
        prices = prices[prices != NO_PRICE]
        self.prices += len(prices)
        if len(prices):
            self.gcd = int(np.gcd(np.gcd.reduce(prices), self.gcd))

    def add(self, prices: np.ndarray) -> None:
        """float64 prices; NaN is skipped. Rounded at the fewest decimals that reproduce every one of them."""
        prices = prices[np.isfinite(prices)]
        if not len(prices):
            return
        for places in range(_PLACES + 1):
            scaled = prices * 10.0**places
            whole = np.rint(scaled)
            # What is below a tenth of the last decimal is noise, and so is what no int32 tick could be: a legal tick is
            # at least 4.6e-10 of its price.
            noise = np.maximum(min(1e-6, 10.0 ** (places - _PLACES - 1)), 1e-12 * np.abs(scaled))
            if (np.abs(scaled - whole) <= noise).all():
                break
        self.prices += len(prices)
        unit = 10 ** (_PLACES - places)
        common = int(np.gcd.reduce(whole.astype(np.int64))) * unit
        self.gcd = int(np.gcd(common, self.gcd)) if self.gcd else common

    def text_of(self, place: str) -> str:
        """The tick size found, as decimal text. Raises DataError for `place` when no price was seen there."""
        if not self.prices:
            raise DataError(
                f"{place}: no price is defined in any row: all levels are empty\n"
                "give data in which both sides are quoted"
            )
        if not self.gcd:
            raise DataError(f"{place}: every price is 0, so no tick size can be told\nset data.tick_size")
        return decimal_text(Decimal(self.gcd) / NANO)


def nano_to_ticks(prices: np.ndarray, tick: str, row: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """int64 prices in 1e-9 [n, ...] -> int32 ticks, UNDEF where undefined. `row` [n] numbers the rows for errors."""
    unit = nano_tick(tick)
    missing = prices == NO_PRICE
    ticks, rest = np.divmod(np.where(missing, 0, prices), unit)
    bad = (rest != 0) | (np.abs(ticks) > _MAX_TICKS)
    if bad.any():
        _off_grid(bad, prices / NANO, tick, row, where)
    return np.where(missing, UNDEF, ticks).astype(np.int32)


def to_ticks(prices: np.ndarray, tick: str, row: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """float64 prices [n, ...] -> int32 ticks, UNDEF for NaN. `row` [n] numbers the rows for errors."""
    missing = np.isnan(prices)
    exact = np.where(missing, 0.0, prices) / float(tick)
    ticks = np.rint(exact)
    bad = (np.abs(exact - ticks) > _NOISE) | (np.abs(ticks) > _MAX_TICKS)
    if bad.any():
        _off_grid(bad, prices, tick, row, where)
    return np.where(missing, UNDEF, ticks).astype(np.int32)


def nano_tick(tick: str) -> int:
    """A tick size in whole 1e-9. Raises DataError for one that is finer than that, or not above 0."""
    scaled = Decimal(tick) * NANO
    if scaled <= 0 or scaled != int(scaled):
        raise DataError(f"tick size {tick}: not a whole number of 1e-9\nset data.tick_size to the grid of the prices")
    return int(scaled)


def off_grid(price: float, tick: str, place: str) -> DataError:
    return DataError(
        f"{place}: price {decimal_text(Decimal(f'{price:.9f}'))} is not on the tick grid of {tick}\n"
        "set data.tick_size to the true grid, or 0 to infer it from the prices"
    )


def _off_grid(bad: np.ndarray, prices: np.ndarray, tick: str, row: np.ndarray, where: Callable[[int], str]) -> None:
    first = int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
    at = np.argmax(bad.reshape(len(bad), -1)[first])
    raise off_grid(float(prices.reshape(len(bad), -1)[first, at]), tick, where(int(row[first])))
