"""The stages of a run as functions: what each command of the trainer does, without the command line.

`<runs>/alpha-rl-runs/<run-id>/study.json` ties a run-id to one config and one data set: another study can't move in.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from trainer.config import StudyConfig
from trainer.errors import DeviceMemory, UsageError
from trainer.files import write_json, write_text
from trainer.paths import fold_folder, run_folder

if TYPE_CHECKING:
    from trainer.data.folds import Fold
    from trainer.data.market import Market
    from trainer.device import Device
    from trainer.learn.loop import Outcome
    from trainer.recipes.alpha_rl import AlphaRL
    from trainer.results.fold_result import FoldResult
    from trainer.results.gate import Verdict

DONE = "DONE"
PER_ROW = ("market", "validation", "judgement")  # arenas that grow with the market's rows
LEASE_WAIT_S = 90.0  # in a pod: longer than a silent owner keeps a fold folder
log = structlog.get_logger()


@dataclass(frozen=True)
class Place:
    """Where a run lies and what it is called."""

    runs: Path
    cache: Path
    run_id: str

    @property
    def folder(self) -> Path:
        return run_folder(self.runs, self.run_id)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"env": {"fee_ticks": 0.1}} -> {"env.fee_ticks": "0.1"}."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value)
    return flat


def checkpoint_meta(cfg: StudyConfig, data_digest: str, device_model: str) -> dict[str, str]:
    from trainer.learn.loop import environment_meta

    config = {f"config.{k}": v for k, v in flatten(cfg.identity()).items()}
    return {**config, "data.digest": data_digest, **environment_meta(device_model)}


# -- precompute --


def precompute(place: Place, cfg: StudyConfig, data: list[str]) -> list[Fold]:
    """Feature cache, fold list and study.json. Raises UsageError when the run-id belongs to another study."""
    from trainer.data.precompute import precompute as build

    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--runs {place.runs}: can't write there ({error.strerror})\ngive a folder that this user may write"
        ) from None
    path = place.folder / "study.json"
    old = read_study(place) if path.exists() else None
    identity = {"data": data, "identity": flatten(cfg.identity())}

    def admit(data_digest: str) -> None:
        if old is not None:
            _refuse_another(place, old, identity | {"data_digest": data_digest})

    result = build(data, cfg, place.cache, place.folder, admit)
    study = {
        "run_id": place.run_id,
        "data_digest": result.data_digest,
        "cache": str(result.cache.resolve()),
        "rows": result.rows,
        "config_digest": cfg.digest(),
        "config": cfg.model_dump(mode="json"),
    }
    write_json(path, identity | study)
    return result.folds


def _refuse_another(place: Place, old: dict[str, Any], new: dict[str, Any]) -> None:
    changed = [
        f"{key} was {old['identity'].get(key)}, now {value}"
        for key, value in new["identity"].items()
        if old["identity"].get(key) != value
    ]
    if old["data_digest"] != new["data_digest"]:
        changed.append(f"data was {' '.join(old['data'])}, now {' '.join(new['data'])}")
    if changed:
        raise UsageError(
            f"--run-id {place.run_id}: already in use by another study: {'; '.join(changed[:4])}\n"
            "choose another --run-id, or leave it out to have one derived"
        )


def read_study(place: Place) -> dict[str, Any]:
    path = place.folder / "study.json"
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        known = sorted(p.name for p in place.folder.parent.glob("*")) if place.folder.parent.is_dir() else []
        hint = f"runs here: {', '.join(known[:8])}" if known else f"there are no runs in {place.runs}"
        raise UsageError(f"--run-id {place.run_id}: no such run ({path} is missing)\n{hint}") from None
    except OSError as error:
        raise UsageError(
            f"--runs {place.runs}: {path} can't be read ({error.strerror})\ngive the folder of runs"
        ) from None
    except ValueError:
        raise UsageError(f"{path}: damaged\nrun `python -m trainer precompute` for this run-id again") from None


def open_study(place: Place, cfg: StudyConfig) -> tuple[dict[str, Any], Market, list[Fold]]:
    """What precompute left. Raises UsageError when the settings are not those of the run."""
    from trainer.data.market import open_market
    from trainer.data.precompute import read_folds

    study = read_study(place)
    _refuse_another(place, study, study | {"identity": flatten(cfg.identity())})
    return study, open_market(study["cache"]), read_folds(place.folder)


def config_of(place: Place) -> StudyConfig:
    """The config that the run was made with."""
    return StudyConfig.model_validate(read_study(place)["config"])


def judging_config(place: Place, overrides: Sequence[str]) -> StudyConfig:
    """The run's config with other `eval.*` settings; what shaped the training stays as it was."""
    from trainer.config import with_overrides

    items = [item for item in overrides if item.partition(".")[0].strip() == "eval"]
    return with_overrides(config_of(place), items)


# -- train and evaluate --


def done_mark(cfg: StudyConfig, study: dict[str, Any], fold: int) -> str:
    return f"{cfg.digest()} {study['data_digest']} fold {fold} steps {cfg.run.n_steps} weights {cfg.eval.select}"


def read_done(folder: Path) -> tuple[str, str]:
    """(inputs, state hash) of the DONE file, empty when there is none."""
    try:
        lines = (folder / DONE).read_text().splitlines()
    except OSError:
        return "", ""
    return (lines[0], lines[1]) if len(lines) > 1 else ("", "")


def train(
    place: Place, cfg: StudyConfig, fold: int, resume: str = "auto", judge: bool = True, quiet: bool = False
) -> tuple[Outcome | None, FoldResult | None]:
    """Trains a fold and judges it. A fold that is DONE is left alone: (None, its result)."""
    from trainer.device import open_device
    from trainer.learn.heartbeat import Heartbeat
    from trainer.learn.loop import train as run
    from trainer.learn.metrics import write_progress
    from trainer.results.fold_result import read_fold_result

    study, market, folds = open_study(place, cfg)
    chosen = _fold(folds, fold)
    folder = fold_folder(place.folder, fold)
    mark = done_mark(cfg, study, fold)
    if read_done(folder)[0] == mark:
        log.info("already done, nothing to do", fold=fold, folder=str(folder))
        write_progress(cfg.run.n_steps, cfg.run.n_steps)
        return None, read_fold_result(folder)
    device = open_device(cfg.run.device, cfg.run.tf32)
    log.info("training", fold=chosen.label, device=device.name, steps=cfg.run.n_steps, train_rows=_rows(chosen.train))
    meta = checkpoint_meta(cfg, study["data_digest"], device.model)
    wait = LEASE_WAIT_S if os.environ.get("FOXHUNT_POD") else 0.0
    result = None
    with Heartbeat(fold, cfg.run.n_steps) as heartbeat:
        recipe, outcome = run(
            lambda: _build(device, cfg, market, chosen, judge),
            cfg.run,
            folder,
            fold,
            meta,
            resume,
            quiet,
            wait,
            heartbeat,
        )
        log.info("trained", fold=fold, step=outcome.step, seconds=round(outcome.seconds, 1), state=outcome.state_hash)
        if judge:
            heartbeat.phase = "judging"
            name = "best.param" if cfg.eval.select == "best-val" and _has_best(recipe) else "opt.param"
            result = _judge(place, cfg, study, market, chosen, device, recipe.store, recipe.store[name], name)
            write_text(folder / DONE, f"{mark}\n{outcome.state_hash}\n")
    return outcome, result


def _build(device: Device, cfg: StudyConfig, market: Market, fold: Fold, judge: bool = True) -> AlphaRL:
    """The run's arrays on the device. Before any is there, what the GPU could not do later is refused: launch the
    kernels, validate, and judge the fold after all of its steps."""
    from trainer.device.memory import listed, mib
    from trainer.nets.dry import require_launches
    from trainer.recipes.alpha_rl import AlphaRL, workspaces

    require_launches(device, cfg.net, market.n_features)
    device.expected = _later(cfg, market, fold, judge) | workspaces(device)
    with _room_for(market):
        recipe = AlphaRL(device, cfg, market, fold)
    log.info("memory", arenas=listed(recipe.arenas()), **{name: mib(size) for name, size in device.memory().items()})
    return recipe


def _later(cfg: StudyConfig, market: Market, fold: Fold, judge: bool) -> dict[str, int]:
    """Bytes by name of what is allocated after the arrays of the training steps."""
    from trainer.learn.evaluator import pass_memory
    from trainer.recipes.alpha_rl import validation_lanes
    from trainer.results.evaluate import judgement_memory

    found = pass_memory(cfg, market.n_features, validation_lanes(cfg, market, fold), "validation")
    return found | (judgement_memory(cfg, market, fold) if judge else {})


@contextmanager
def _room_for(market: Market) -> Iterator[None]:
    try:
        yield
    except DeviceMemory as error:
        raise too_many_rows(error, market) or error from None


def too_many_rows(error: DeviceMemory, market: Market) -> DeviceMemory | None:
    """What fits, when it is the market's rows that don't: sampling and window. None when all else alone is too much."""
    from trainer.data.sampling import coarser

    taken, rows = sum(error.arenas.get(name, 0) for name in PER_ROW), len(market)
    room = int((error.free - sum(error.arenas.values()) + taken) / max(taken / rows, 1))
    if not 0 < room < rows:
        return None
    sample = coarser(market.meta.sampling, rows, room)
    now, then = market.meta.sampling, f"--set data.sample={sample}" if sample else "a coarser data.sample"
    return DeviceMemory(
        f"GPU memory: the market's {rows:,} rows (sampled at {now}) take {taken >> 20:,} MiB, and about {room:,} rows "
        f"fit beside the rest; use {then}, or a window of at most {room:,} rows (fewer files)",
        error.arenas,
        error.free,
    )


def export_fold(place: Place, fold: int, outputs: Path) -> None:
    """Leaves the fold's metrics (all attempts as one series) and its result where a workflow picks up files."""
    from trainer.learn.metrics import read_metrics

    folder = fold_folder(place.folder, fold)
    outputs.mkdir(parents=True, exist_ok=True)
    write_text(outputs / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in read_metrics(folder)))
    write_text(outputs / "fold_result.json", (folder / "fold_result.json").read_text())


def evaluate(place: Place, cfg: StudyConfig, fold: int) -> FoldResult:
    """Judges the newest checkpoint's weights again."""
    from trainer.device import open_device
    from trainer.learn.checkpoint import check_same, newest_valid
    from trainer.results.evaluate import judgement_memory, market_store

    study, market, folds = open_study(place, cfg)
    chosen = _fold(folds, fold)
    folder = fold_folder(place.folder, fold)
    found = newest_valid(folder)
    if found is None:
        raise UsageError(
            f"fold {fold}: no checkpoint in {folder}\ntrain it first: python -m trainer train --fold {fold}"
        )
    device = open_device(cfg.run.device, cfg.run.tf32)
    meta = checkpoint_meta(cfg, study["data_digest"], device.model)
    check_same(found.meta, meta, found.path)
    best = cfg.eval.select == "best-val" and np.isfinite(found.arrays["best.score"][0])
    name = "best.param" if best else "opt.param"
    weights = found.arrays[name]
    param = device.empty(weights.shape, weights.dtype)
    device.fill(param, weights)
    device.expected = judgement_memory(cfg, market, chosen)
    with _room_for(market):
        store = market_store(device, market, cfg, chosen)
    return _judge(place, cfg, study, market, chosen, device, store, param, name)


def _has_best(recipe: Any) -> bool:
    return bool(np.isfinite(recipe.device.to_host(recipe.store["best.score"])[0]))


def _fold(folds: list[Fold], index: int) -> Fold:
    if not 0 <= index < len(folds):
        raise UsageError(f"--fold {index}: the run has folds 0 to {len(folds) - 1}")
    return folds[index]


def _rows(rows: tuple[int, int]) -> str:
    return f"{rows[0]}..{rows[1] - 1}"


def _judge(
    place: Place,
    cfg: StudyConfig,
    study: dict[str, Any],
    market: Market,
    fold: Fold,
    device: Any,
    store: Any,
    param: Any,
    weights: str,
) -> FoldResult:
    from trainer.data.precompute import cleaning_line
    from trainer.learn.ledger import read_attempts
    from trainer.learn.metrics import read_metrics
    from trainer.results import fold_result as fr
    from trainer.results.evaluate import evaluate_fold
    from trainer.results.trials import register_trial

    folder = fold_folder(place.folder, fold.index)
    started = time.monotonic()
    run = evaluate_fold(device, cfg, market, store, fold, param)
    attempts, lines = read_attempts(folder), read_metrics(folder)
    training_seconds, lost = _seconds(folder)
    result = fr.make_fold_result(
        run,
        cfg.eval,
        windows=fr.Windows(
            train_rows=fold.train,
            test_rows=fold.test,
            train_ts=_times(market, fold.train),
            test_ts=_times(market, fold.test),
            purge_rows=fold.purge,
        ),
        market=fr.Market(
            symbol=market.meta.symbol,
            tick_size=float(market.meta.tick_size),
            multiplier=market.meta.multiplier,
            sampling=market.meta.sampling,
            counts=market.meta.counts,
            cleaning=cleaning_line(market.meta),
            notes=tuple(market.meta.notes),
        ),
        training=fr.Training(
            steps=int(lines[-1]["step"]) if lines else cfg.run.n_steps,
            gpu_seconds=round(training_seconds, 1) if device.name == "cuda" else 0.0,
            interrupted_seconds=round(lost, 1),
            attempts=max(len(attempts), 1),
            device=device.model,
            weights="best validation" if weights == "best.param" else "final",
            curve=fr.training_curve(lines),
        ),
        provenance=fr.Provenance(
            run_id=place.run_id,
            seed=cfg.learn.seed,
            config_digest=cfg.digest(),
            data_digest=study["data_digest"],
            code_sha=os.environ.get("FOXHUNT_COMMIT", ""),
            # Outside of a pod the code is whatever is installed, not an image.
            image_digest=os.environ.get("FOXHUNT_IMAGE", "") if os.environ.get("FOXHUNT_POD") else "",
            versions={"python": platform.python_version(), "numpy": np.__version__},
        ),
        trials=register_trial(place.runs, study["data_digest"], place.run_id),
    )
    fr.write_fold_files(folder, run, result)
    log.info("judged", fold=fold.index, seconds=round(time.monotonic() - started, 1), folder=str(folder))
    return result


def _times(market: Market, rows: tuple[int, int]) -> tuple[int, int]:
    return int(market.ts[rows[0]]), int(market.ts[rows[1] - 1])


def _seconds(folder: Path) -> tuple[float, float]:
    """(seconds that attempts ran, seconds lost to interruptions).

    Lost is the time between the last line of an attempt that was kept (its step is not past the checkpoint from which
    the next attempt resumed) and the start of that next attempt.
    """
    from trainer.files import read_json_lines
    from trainer.learn.ledger import read_attempts
    from trainer.learn.metrics import metrics_path

    attempts = read_attempts(folder)
    ran = sum(max((a.ended or time.time()) - a.started, 0.0) for a in attempts)
    lost = 0.0
    for past, following in pairwise(attempts):
        lines = read_json_lines(metrics_path(folder, past.attempt))
        kept = [float(x["time"]) for x in lines if int(x["step"]) <= following.resumed_step]
        lost += max(following.started - (kept[-1] if kept else past.started), 0.0)
    return ran, lost


# -- gate and report --


def gate(place: Place, overrides: Sequence[str] = ()) -> Verdict:
    """Judges all folds of the run and writes gate.json. `overrides` may set the criteria: eval.key=value."""
    from trainer.data.precompute import read_folds
    from trainer.results.fold_result import read_fold_result
    from trainer.results.gate import judge, write_gate

    cfg = judging_config(place, overrides)
    indices = [f.index for f in read_folds(place.folder)]
    results = {i: read_fold_result(fold_folder(place.folder, i)) for i in indices}
    verdict = judge(results, cfg.eval, indices)
    write_gate(place.folder / "gate.json", verdict)
    return verdict


def report(place: Place, overrides: Sequence[str] = ()) -> Path:
    from trainer.data.precompute import read_folds
    from trainer.results.report import load_study, write_report

    indices = [f.index for f in read_folds(place.folder)]
    return write_report(load_study(place.folder, judging_config(place, overrides), indices))
