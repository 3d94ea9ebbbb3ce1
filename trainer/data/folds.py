"""Walk-forward folds: consecutive windows of equal rows; fold i trains on window i and is judged on window i + 1.

    window i:      [ train slice | purge | validation slice | purge ][ test window = window i + 1 ]

The purge is taken from the train side only, so test windows never move. It is as long as the furthest that a train row
reaches ahead (label, n-step return, episode) or a test row reaches back (features, encoder window): no test row shares
an input or an outcome with a train row. The validation slice is the last share of what the purge at the window's end
leaves. (Purging: Lopez de Prado, Advances in Financial Machine Learning, 2018, section 7.4.1.)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from trainer.config import StudyConfig
from trainer.errors import DataError

Slice = tuple[int, int]  # rows a .. b - 1
MIN_ROWS = 4  # rows judged in a validation slice, at least


@dataclass(frozen=True)
class Fold:
    """Rows of one fold. `train_window` is whole; `train` and `val` are what purge and validation leave of it."""

    index: int
    train_window: Slice
    train: Slice
    val: Slice  # empty (a == b) when the validation share is 0
    test: Slice
    purge: int  # rows between train and val, and between val (or train) and test
    warmup: int  # rows at the head of every slice in which nothing is decided: the encoder window fills
    dates: dict[str, tuple[str, str]]  # slice name -> UTC of its first and last row, ISO 8601
    label: str  # "0 2023-12-25T23:15..23:30", of the test window

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Fold:
        slices = {name: (int(tree[name][0]), int(tree[name][1])) for name in ("train_window", "train", "val", "test")}
        dates = {name: (pair[0], pair[1]) for name, pair in tree["dates"].items()}
        return cls(**{**tree, **slices, "dates": dates})


@dataclass(frozen=True)
class FoldPlan:
    """The sizes that cut a series into folds, all in rows."""

    folds: int
    look_back: int
    window: int
    n_step: int
    label_rows: int
    episode_len: int
    validation_share: float

    @classmethod
    def of(cls, cfg: StudyConfig, look_back: int) -> FoldPlan:
        return cls(
            folds=cfg.folds.folds,
            look_back=look_back,
            window=cfg.net.window,
            n_step=cfg.learn.n_step,
            label_rows=cfg.data.label_rows,
            episode_len=cfg.env.episode_len,
            validation_share=cfg.folds.validation_share,
        )

    @property
    def purge(self) -> int:
        return max(self.look_back + self.window, self.n_step, self.label_rows, self.episode_len)

    @property
    def warmup(self) -> int:
        return self.window

    def split(self, rows: int) -> tuple[int, int]:
        """Rows of the train and of the validation slice of a train window of `rows`; negative when it is too short."""
        usable = rows - self.purge
        if self.validation_share == 0:
            return usable, 0
        val = int(usable * self.validation_share)
        return usable - val - self.purge, val

    def fits(self, rows: int) -> bool:
        """A window of `rows` holds an episode to train on, one to be judged on, and some rows to validate on."""
        train, val = self.split(rows)
        episode = self.warmup + max(self.episode_len, self.n_step + 1)
        return train >= episode and rows >= episode and (not self.validation_share or val >= self.warmup + MIN_ROWS)

    @property
    def rows_needed(self) -> int:
        """Rows of the shortest series that these folds fit (doubling, then bisection: `fits` is monotone)."""
        low, high = 1, 2
        while not self.fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high * (self.folds + 1)


def make_folds(ts: np.ndarray, session: np.ndarray, plan: FoldPlan) -> list[Fold]:
    """Cuts N rows (`ts` int64 [N] ns UTC, `session` int32 [N]) into `plan.folds + 1` windows and returns the folds.

    Raises DataError when a window is too short for its purge, or its sessions are too short for one episode's start.
    """
    n = len(ts)
    if n < plan.rows_needed:
        raise DataError(_too_few(n, plan))
    bounds = [i * n // (plan.folds + 1) for i in range(plan.folds + 2)]
    folds = []
    for i in range(plan.folds):
        a, b, c = bounds[i : i + 3]
        train_rows, val_rows = plan.split(b - a)
        val = (b - plan.purge - val_rows, b - plan.purge)
        slices = {"train_window": (a, b), "train": (a, a + train_rows), "val": val, "test": (b, c)}
        for name in ("train", "test"):
            _check_sessions(session, slices[name], plan, f"fold {i}: {name} slice")
        dates = {name: _dates(ts, rows) for name, rows in slices.items() if rows[1] > rows[0]}
        folds.append(
            Fold(i, **slices, purge=plan.purge, warmup=plan.warmup, dates=dates, label=f"{i} {_label(ts, (b, c))}")
        )
    return folds


def longest_session(session: np.ndarray, rows: Slice) -> int:
    """Rows of the longest unbroken session inside rows a .. b."""
    part = session[rows[0] : rows[1]]  # ascending, so a few look-ups find every session's start
    starts = np.searchsorted(part, np.arange(int(part[0]), int(part[-1]) + 2))
    return int(np.diff(starts).max())


def _check_sessions(session: np.ndarray, rows: Slice, plan: FoldPlan, where: str) -> None:
    need, longest = plan.warmup + plan.n_step + 1, longest_session(session, rows)
    if longest < need:
        raise DataError(
            f"{where}: its longest session has {longest} rows, at least {need} are needed\n"
            f"nothing crosses a session gap: raise data.session_gap_s above the usual gap between rows, or lower "
            f"net.window ({plan.window})"
        )


def _too_few(n: int, plan: FoldPlan) -> str:
    """What is needed, what is there, and the mildest change of settings that would fit."""
    need = f"too few rows: {plan.folds} folds need at least {plan.rows_needed}, the series has {n}"
    why = (
        f"a train window loses {plan.purge} rows to each purge (feature look-back {plan.look_back} + net.window "
        f"{plan.window}, episode {plan.episode_len}, label {plan.label_rows})"
    )
    return f"{need}; {why}\n{_advice(n, plan)}"


def _advice(n: int, plan: FoldPlan) -> str:
    for change in _smaller(plan):
        changed = replace(plan, **change)
        if n >= changed.rows_needed:
            flags = " ".join(f"{flag}{getattr(changed, name)}" for name, flag in _FLAGS.items() if name in change)
            return f"take more data, or a finer data.sample, or shorten the study: {flags} fits"
    least = replace(plan, **_LEAST).rows_needed
    return f"take more data or a finer data.sample: no setting fits fewer than {least} rows"


_FLAGS = {
    "folds": "--folds ",
    "episode_len": "--set env.episode_len=",
    "window": "--set net.window=",
    "validation_share": "--set folds.validation_share=",
}
_LEAST: dict[str, Any] = {"folds": 1, "episode_len": 8, "window": 4, "validation_share": 0.0}


def _smaller(plan: FoldPlan) -> list[dict[str, Any]]:
    """Changes that need fewer rows, the mildest first; each keeps what those before it made smaller."""
    short = {
        "window": max(4, min(plan.window, plan.window // 2)),
        "episode_len": max(8, min(plan.episode_len, plan.episode_len // 4)),
    }
    steps: list[dict[str, Any]] = [{"window": short["window"]}, {"episode_len": short["episode_len"]}, short]
    steps += [{"folds": k} for k in range(plan.folds - 1, 0, -1)]
    steps += [{"folds": k, **short} for k in range(plan.folds - 1, 0, -1)]
    steps += [{"validation_share": 0.0, **step} for step in ({}, short, {"folds": 1}, {"folds": 1, **short})]
    return [{k: v for k, v in step.items() if v != getattr(plan, k)} for step in [*steps, _LEAST]]


def _dates(ts: np.ndarray, rows: Slice) -> tuple[str, str]:
    first, last = (np.datetime64(int(ts[t]), "ns") for t in (rows[0], rows[1] - 1))
    return f"{first}Z", f"{last}Z"


def _label(ts: np.ndarray, rows: Slice) -> str:
    """To the nearest minute, for people: `2023-12-25T23:15..23:30`; the second date only when it is another day."""
    half = 30_000_000_000
    first, last = (str(np.datetime64(int(ts[t]) + half, "ns"))[:16] for t in (rows[0], rows[1] - 1))
    return f"{first}..{last[11:] if first[:10] == last[:10] else last}"
