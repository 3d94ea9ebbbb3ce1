"""Stage 1, whole: market files or the synthetic market -> feature cache and fold list."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from trainer.config import StudyConfig
from trainer.data.folds import Fold, FoldPlan, make_folds
from trainer.data.fxcache import find_or_build
from trainer.data.inputs import open_series
from trainer.data.market import MarketMeta, open_market
from trainer.data.s3 import fetch_inputs
from trainer.errors import UsageError
from trainer.files import write_text

log = structlog.get_logger()

RULES = ("pre-open", "crossed", "undefined", "duplicate")  # of clean.py


@dataclass(frozen=True)
class PrecomputeResult:
    cache: Path  # the feature cache file: `open_market(cache)`
    folds: list[Fold]
    rows: int
    data_digest: str  # SHA-256 of the input
    meta: MarketMeta


def precompute(
    paths: Sequence[str | Path],
    cfg: StudyConfig,
    cache_dir: str | Path,
    run_dir: str | Path,
    admit: Callable[[str], None] = lambda data_digest: None,
) -> PrecomputeResult:
    """Finds or builds the feature cache of `paths` (files, s3:// or one synthetic URI); writes `<run_dir>/folds.json`.

    The cache is kept even when the folds don't fit: it is valid, and other settings may use it. `admit` is called with
    the data's digest before anything is written into `run_dir`; it may raise. Raises UsageError, DataError.
    """
    series = open_series(fetch_inputs(paths, cache_dir), cfg.data)
    cache = find_or_build(series, cfg.data, cache_dir)
    market = open_market(cache)
    meta = market.meta
    log.info(cleaning_line(meta), symbol=meta.symbol, rows=len(market), sampling=meta.sampling, **meta.counts)
    for note in meta.notes:
        log.info(note)
    folds = make_folds(market.ts, market.session, FoldPlan.of(cfg, meta.look_back))
    admit(meta.data_digest)
    write_folds(Path(run_dir), folds)
    return PrecomputeResult(cache, folds, len(market), meta.data_digest, meta)


def cleaning_line(meta: MarketMeta) -> str:
    """`dropped pre-open=925 crossed=0 ...`: rows that each cleaning rule took away, the usual rules always named."""
    counts = {**dict.fromkeys(RULES, 0), **meta.cleaning}
    return "dropped " + " ".join(f"{rule}={n}" for rule, n in counts.items())


def write_folds(run_dir: Path, folds: list[Fold]) -> Path:
    """`folds.json`: a list, one object a fold. Written whole or not at all."""
    path = run_dir / "folds.json"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps([fold.to_json() for fold in folds], indent=1))
    except OSError as error:
        raise UsageError(
            f"{path}: can't be written: {error.strerror}\nfree some space or choose another --runs"
        ) from None
    return path


def read_folds(run_dir: str | Path) -> list[Fold]:
    """The folds of a run. Raises UsageError where `folds.json` is missing or not a fold list."""
    path = Path(run_dir) / "folds.json"
    try:
        return [Fold.from_json(tree) for tree in json.loads(path.read_text())]
    except FileNotFoundError:
        raise UsageError(f"{path}: no fold list\nrun precompute for this run id first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a fold list ({error})\nrun precompute again") from None
