"""The synthetic market: a ten-level book whose imbalance predicts the move after next with a set strength.

`synthetic[:signal=0.75,rows=40000,seed=0]`. A row is one decision, a second after the one before; prices in ticks:

    x_t      = phi x_{t-1} + sqrt(1 - phi^2) eps,  phi = 0.2        latent pressure, stationary N(0, 1)
    d_t      = 2 U - N,  N ~ Poisson(6),  U ~ Binomial(N, (1 + signal tanh x_{t-2}) / 2)     jump of the mid into row t
    spread   = 1 <-> 2, P(1 -> 2) = 0.05, P(2 -> 1) = 0.5; a fair coin picks the side that moves
    sizes    = max(1, round(exp(ln(20 (1 + 0.15 k)) +- 0.4 0.85^k (x_t + 0.7 c_t) + 0.6 eps))),  + bid, - ask, k = 0..9
    volume   = round(10 (x_t + 0.7 eps)), signed
    gaps     = 1 tick between levels, 2 with probability 0.1

So x_t drives the move from row t + 1 to row t + 2: the first move that an order with one row of latency can earn. At
signal 0 the mid is a martingale: the negative control, in which a study must find no edge.

Every draw is Philox with counter (row, block, SYNTHETIC) and the seed as key: the same series on every machine, in any
chunks; another signal or another number of rows keeps the draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from kernels.philox import Purpose, philox4x32
from trainer.data.frame import BookFrame, SeriesInfo
from trainer.errors import UsageError, nearest

SCHEME = "synthetic"
SYMBOL = "SYNTHETIC"
TICK_SIZE = "0.25"
LEVELS = 10
START_NS = 1_704_205_800_000_000_000  # 2024-01-02T14:30:00Z
ROW_NS = 1_000_000_000  # a fold of 10,000 rows then has 16 blocks of ten minutes for its intervals
START_BID = 400_000  # ticks: far from zero, whatever the number of rows
PHI = 0.2
JUMPS = 6.0  # mean number of one-tick jumps of the mid a row
WIDEN, NARROW = 0.05, 0.5
LAG = 2  # rows from the pressure to the move that it drives
CHUNK = 8192  # rows drawn at once

# Draws of a row: 24 normals from the first 24 words (Box-Muller), then 22 uniforms, of 12 blocks of 4 words.
_BLOCKS, _NORMALS = 12, 24
_X, _COMMON, _VOLUME, _SIZES = 0, 1, 2, 3  # normals: pressure, c_t, volume, then LEVELS bid and LEVELS ask sizes
_UP, _DOWN, _SPREAD, _SIDE, _GAPS = 0, 1, 2, 3, 4  # uniforms: jumps up, down, spread, coin, then the level gaps


@dataclass(frozen=True)
class SyntheticConfig:
    signal: float = 0.75  # 0 .. 1, strength of the prediction
    rows: int = 40_000
    seed: int = 0

    @property
    def uri(self) -> str:
        """The canonical spelling: equal settings, equal text."""
        return f"{SCHEME}:signal={self.signal!r},rows={self.rows},seed={self.seed}"


def is_synthetic(uri: str) -> bool:
    return uri == SCHEME or uri.startswith(SCHEME + ":")


def parse_synthetic(uri: str) -> SyntheticConfig:
    """`synthetic` or `synthetic:key=value,...`. Raises UsageError that names the key, the value and what is allowed."""
    settings: dict[str, float | int] = {}
    known = {"signal": float, "rows": int, "seed": int}
    limits = {"signal": (0, 1), "rows": (1, 2**40), "seed": (0, 2**32 - 1)}
    body = uri.removeprefix(SCHEME).removeprefix(":")
    for item in filter(None, body.split(",")):
        key, eq, text = (part.strip() for part in item.partition("="))
        if key not in known:
            raise UsageError(
                f"--data {uri}: unknown setting {key!r}{nearest(key, list(known))}\n"
                f"write synthetic:signal=0.75,rows=40000,seed=0; each setting may be left out"
            )
        if key in settings:
            raise UsageError(f"--data {uri}: {key} is given twice\nkeep one of them")
        low, high = limits[key]
        try:
            value = known[key](text)
            bad = not low <= value <= high
        except ValueError:
            bad = True
        if not eq or bad:
            kind = "a number" if known[key] is float else "a whole number"
            raise UsageError(f"--data {uri}: {key}={text or '?'} is not {kind} from {low} to {high}\nfix that setting")
        settings[key] = value
    return SyntheticConfig(**settings)  # type: ignore[arg-type]


class SyntheticSeries:
    """A series like one from files: `.info`, `.digest`, `.chunks()`. Already one row a decision, so never sampled."""

    def __init__(self, cfg: SyntheticConfig, levels: int = LEVELS):
        self.cfg = cfg
        self.info = SeriesInfo(SYMBOL, TICK_SIZE, levels=levels, schema=SCHEME, sampling=f"{ROW_NS // 1_000_000_000}s")

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical URI, which defines every row; hex."""
        return hashlib.sha256(self.cfg.uri.encode()).hexdigest()

    def chunks(self) -> Iterator[BookFrame]:
        """Frames of at most CHUNK rows, in time order, one session."""
        state = _State(self.cfg)
        for start in range(0, self.cfg.rows, CHUNK):
            yield state.draw(start, min(start + CHUNK, self.cfg.rows), self.info.levels)


class _State:
    """What a chunk hands to the next: the last two pressures, spread and bid after the last row."""

    def __init__(self, cfg: SyntheticConfig):
        self.cfg = cfg
        normals, _ = _draws(0, LAG, cfg.seed)
        first = float(normals[0, _X])  # stationary: variance 1
        self.past = [first, PHI * first + _innovation(normals[1:, _X])[0]]
        self.spread, self.bid = 1, START_BID

    def draw(self, start: int, stop: int, levels: int) -> BookFrame:
        """Rows start .. stop; must follow the chunk before."""
        normals, uniforms = _draws(start + LAG, stop + LAG, self.cfg.seed)
        x = np.array([*self.past, *self._pressure(normals[:, _X])])  # x[i] is x of row start + i - LAG
        self.past = x[-LAG:].tolist()
        bid, ask = self._touch(self.cfg.signal * np.tanh(x[:-LAG]), uniforms)
        sizes = _sizes(x[LAG:], normals)
        gaps = 1 + (uniforms[:, _GAPS:] < 0.1).astype(np.int32)
        depth = np.zeros((stop - start, 2, LEVELS), np.int32)  # ticks away from the touch
        np.cumsum(gaps.reshape(-1, 2, LEVELS - 1), axis=2, out=depth[:, :, 1:])
        return BookFrame(
            ts=START_NS + ROW_NS * np.arange(start, stop, dtype=np.int64),
            bid_px=np.ascontiguousarray((bid[:, None] - depth[:, 0])[:, :levels], np.int32),
            ask_px=np.ascontiguousarray((ask[:, None] + depth[:, 1])[:, :levels], np.int32),
            bid_sz=np.ascontiguousarray(sizes[:, 0, :levels]),
            ask_sz=np.ascontiguousarray(sizes[:, 1, :levels]),
            signed_volume=np.rint(10.0 * (x[LAG:] + 0.7 * normals[:, _VOLUME])).astype(np.int32),
            session=np.zeros(stop - start, np.int32),
        )

    def _pressure(self, eps: np.ndarray) -> list[float]:
        steps = _innovation(eps)
        return list(accumulate(steps, lambda x, e: PHI * x + e, initial=self.past[-1]))[1:]

    def _touch(self, tilt: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Best bid and ask [n], int64 ticks. `tilt` [n] is signal * tanh x_{t-2}.

        Splitting Poisson(6) by a coin gives two independent Poissons (thinning): up-jumps and down-jumps.
        """
        up = _poisson(uniforms[:, _UP], JUMPS * (1 + tilt) / 2)
        down = _poisson(uniforms[:, _DOWN], JUMPS * (1 - tilt) / 2)
        u = uniforms[:, _SPREAD].tolist()
        after = accumulate(u, lambda s, v: s + (v < WIDEN) if s == 1 else s - (v < NARROW), initial=self.spread)
        spread = np.array(list(after))
        change = np.diff(spread)  # ticks; the coin says whether the bid (-change) or the ask (+change) makes it
        steps = up - down - np.where(uniforms[:, _SIDE] < 0.5, change, 0)
        bid = self.bid + np.cumsum(steps)
        self.bid, self.spread = int(bid[-1]), int(spread[-1])
        return bid, bid + spread[1:]


def _innovation(eps: np.ndarray) -> list[float]:
    return (np.sqrt(1 - PHI * PHI) * eps).tolist()


def _draws(start: int, stop: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normals [n, 24] and uniforms on (0, 1) [n, 24], float64, of the counters start .. stop."""
    row = np.arange(start, stop, dtype=np.uint64)[:, None]
    low, high = row & np.uint64(0xFFFFFFFF), row >> np.uint64(32)
    words = philox4x32(low, high, np.arange(_BLOCKS, dtype=np.uint32), int(Purpose.SYNTHETIC), seed)
    u = (np.stack(words, axis=2).reshape(stop - start, 4 * _BLOCKS) + 0.5) * 2.0**-32
    radius = np.sqrt(-2.0 * np.log(u[:, : _NORMALS // 2]))
    angle = 2.0 * np.pi * u[:, _NORMALS // 2 : _NORMALS]
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return normals, u[:, _NORMALS : _NORMALS + _GAPS + 2 * (LEVELS - 1)]


def _poisson(u: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Poisson(rate) by inversion of its distribution function, int64 [n]."""
    k = np.zeros(u.shape, np.int64)
    mass = np.exp(-rate)
    below = mass.copy()
    step = 0
    while (above := u > below).any() and step < 100:
        step += 1
        k += above
        mass = mass * rate / step
        below += mass
    return k


def _sizes(x: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Displayed sizes int32 [n, 2 (bid, ask), LEVELS]."""
    k = np.arange(LEVELS)
    lean = 0.4 * 0.85**k * (x + 0.7 * normals[:, _COMMON])[:, None]
    noise = 0.6 * normals[:, _SIZES : _SIZES + 2 * LEVELS].reshape(-1, 2, LEVELS)
    log_size = np.log(20 * (1 + 0.15 * k)) + np.stack([lean, -lean], axis=1) + noise
    return np.maximum(1, np.rint(np.exp(log_size))).astype(np.int32)
