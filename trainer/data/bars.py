"""Bars without quotes as one-level books."""

from __future__ import annotations

import numpy as np

from trainer.data.frame import UNDEF, BookFrame

BAR_NOTE = (
    "bars have no quotes: a spread of {spread} tick(s) is assumed around the close; "
    "rows are stamped at the bar's end, when it is known"
)


def bar_frame(end: np.ndarray, close: np.ndarray, volume: np.ndarray | None, spread: int) -> BookFrame:
    """One row a bar, known at its end. `end` int64 [n] ns, `close` int32 [n] ticks, `volume` int64 [n] or None.

    bid = close - floor(spread / 2), ask = bid + spread: on the integer grid, so an odd spread lies half a tick above
    the close, the same in every row. Sizes are 0, unlimited; bars don't say who bought, so signed volume is 0.
    """
    bid = np.where(close == UNDEF, UNDEF, close - spread // 2).astype(np.int32)
    ask = np.where(close == UNDEF, UNDEF, bid + spread).astype(np.int32)
    n = len(end)
    return BookFrame(
        ts=end,
        bid_px=bid[:, None],
        ask_px=ask[:, None],
        bid_sz=np.zeros((n, 1), np.int32),
        ask_sz=np.zeros((n, 1), np.int32),
        signed_volume=np.zeros(n, np.int32),
        session=np.zeros(n, np.int32),
        volume=volume,
    )
