"""Traded volume between rows."""

from __future__ import annotations

import numpy as np

from trainer.errors import DataError


def int32_volume(signed: np.ndarray, place: str) -> np.ndarray:
    """int64 -> int32. Raises DataError rather than wrap around."""
    if len(signed) and int(np.abs(signed).max()) > 2**31 - 1:
        raise DataError(f"{place}: a signed volume beyond 2**31 lots in one row\nsample more finely (data.sample)")
    return signed.astype(np.int32)


def regroup(volume: np.ndarray, keep: np.ndarray, carry: int) -> tuple[np.ndarray, int]:
    """Sums volume [n] over each kept row and the dropped ones before it; returns int64 [kept] and what is left over.

    `carry` is what was left over before these rows.
    """
    total = np.cumsum(volume, dtype=np.int64) + carry
    ends = total[keep]
    left = int(total[-1]) if len(total) else int(carry)
    return np.diff(ends, prepend=0), left - (int(ends[-1]) if len(ends) else 0)
