"""`Market`: the arrays of one series, as every later stage reads them: memory-mapped from the feature cache, or in RAM.

N rows, F features, LV book levels. Prices are ticks; UNDEF where a level is not there; a size of 0 with a defined price
is unknown, and unlimited.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trainer.data.frame import Series

COLUMNS = ("ts", "features", "bid_px", "ask_px", "bid_sz", "ask_sz", "session", "signed_volume")  # order in the file
DTYPES = {"ts": "int64", "features": "float32"}  # all others int32


@dataclass(frozen=True)
class MarketMeta:
    """What the rows are, JSON-ready."""

    symbol: str
    tick_size: str  # decimal text
    multiplier: float  # currency per point of price
    levels: int
    schema: str
    sampling: str
    features: list[str]  # F names
    std_floor: list[float]  # F: the least standard deviation to divide by
    look_back: int  # rows before t that the features of row t read
    data_digest: str  # SHA-256 of the input bytes
    cleaning: dict[str, int] = field(default_factory=dict)  # rule -> rows dropped
    counts: dict[str, int] = field(default_factory=dict)  # records, states, trades read
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> MarketMeta:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Market:
    ts: np.ndarray  # int64 [N], ns UTC
    features: np.ndarray  # float32 [N, F]
    bid_px: np.ndarray  # int32 [N, LV]
    ask_px: np.ndarray  # int32 [N, LV]
    bid_sz: np.ndarray  # int32 [N, LV]
    ask_sz: np.ndarray  # int32 [N, LV]
    session: np.ndarray  # int32 [N]
    signed_volume: np.ndarray  # int32 [N]
    meta: MarketMeta

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def n_features(self) -> int:
        return self.features.shape[1]

    @property
    def levels(self) -> int:
        return self.bid_px.shape[1]

    def normalisation(self, rows: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """`fit_normalisation` over rows a .. b - 1 (a train slice) with this market's floors."""
        return fit_normalisation(self.features[rows[0] : rows[1]], np.array(self.meta.std_floor))


def fit_normalisation(features: np.ndarray, std_floor: np.ndarray | float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column, float32 [F] each, over the rows given and no others.

    The floor (in the column's unit) keeps a column that hardly moves in a short train slice, such as the time of day,
    from blowing up on the rows after it. Two passes in float64, in blocks, so a memory-mapped slice needs no copy.
    """
    n, f = features.shape
    if n == 0:
        raise ValueError("normalisation needs at least one row")
    blocks = range(0, n, 65536)
    mean = sum((features[i : i + 65536].sum(0, dtype=np.float64) for i in blocks), np.zeros(f)) / n
    square = np.zeros(f)
    for i in blocks:
        square += np.square(features[i : i + 65536].astype(np.float64) - mean).sum(0)
    std = np.maximum(np.sqrt(square / n), std_floor)
    return mean.astype(np.float32), std.astype(np.float32)


def open_market(path: str | Path) -> Market:
    """Memory-maps a file of the feature cache, read-only. Raises DataError where it is missing or damaged."""
    from trainer.data.fxcache import read_columns

    arrays, meta = read_columns(Path(path))
    return Market(**arrays, meta=meta)


def market_from_series(series: Series) -> Market:
    """A Market in memory, features included: for tests and short series."""
    from trainer.data.features import FeatureStream

    stream = FeatureStream(series.info.levels)
    parts = [{**vars(frame), "features": stream.push(frame)} for frame in series.chunks()]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    return Market(**arrays, meta=make_meta(series))


def synthetic_market(uri: str = "synthetic", levels: int = 10) -> Market:
    """The synthetic market in memory."""
    from trainer.data.synthetic import SyntheticSeries, parse_synthetic

    return market_from_series(SyntheticSeries(parse_synthetic(uri), levels))


def make_meta(series: Series) -> MarketMeta:
    """The description of a series whose chunks have all been read (its cleaning counts are complete by then)."""
    from trainer.data.features import columns, look_back

    info = series.info
    table = columns(info.levels)
    return MarketMeta(
        symbol=info.symbol,
        tick_size=info.tick_size,
        multiplier=info.multiplier,
        levels=info.levels,
        schema=info.schema,
        sampling=info.sampling,
        features=[c.name for c in table],
        std_floor=[c.std_floor for c in table],
        look_back=look_back(info.levels),
        data_digest=series.digest,
        cleaning=dict(info.cleaning),
        counts=dict(info.counts),
        notes=list(info.notes),
    )


def column_shapes(levels: int, n_features: int, rows: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of every column."""
    width = {"features": (n_features,), **dict.fromkeys(("bid_px", "ask_px", "bid_sz", "ask_sz"), (levels,))}
    return {name: ((rows, *width.get(name, ())), np.dtype(DTYPES.get(name, "int32"))) for name in COLUMNS}
