"""A made-up study: a market with a known drift, accounts kept by plain loops, and the files a real study leaves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from trainer.config import EvalConfig, load_config
from trainer.results.eval_run import EvalRun, Fills, Lane
from trainer.results.fold_result import (
    FoldResult,
    Market,
    Provenance,
    Training,
    Windows,
    make_fold_result,
    training_curve,
    write_fold_files,
)

START = 1_703_545_200_000_000_000  # 2023-12-25 23:00 UTC
SECOND = 1_000_000_000
FEE = 100  # 1/1000 tick a lot


def account(mid2: np.ndarray, target: np.ndarray, action: np.ndarray, ordered: np.ndarray) -> Lane:
    """Fills every change of target at mid +- half a tick; mid2 int [N] half ticks; the last target must be 0."""
    position = target.astype(np.int64)
    delta = np.diff(position, prepend=0)
    price = mid2 * 500 + np.sign(delta) * 500
    fee, spread = FEE * np.abs(delta), 500 * np.abs(delta)
    cash = np.cumsum(-delta * price - fee)
    at = np.flatnonzero(delta)
    reason = np.zeros(len(at), np.int8)
    reason[at == len(target) - 1] = 2
    fills = Fills(at, delta[at], (delta * price)[at], fee[at], spread[at], reason)
    path = cash + position * mid2 * 500, np.cumsum(fee), np.cumsum(spread)
    return Lane(*path, position.astype(np.int32), action.astype(np.int8), ordered.astype(np.int8), fills)


def walk(n: int, signal: np.ndarray, rate: float, edge: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Targets [n] of a trader who looks at the drift with probability `rate` and is right with `edge`."""
    target, action, ordered = (np.zeros(n, np.int64) for _ in range(3))
    now = 0
    for i in range(n - 1):
        action[i] = 2
        if rng.random() < rate:
            side = int(np.sign(signal[i])) if rng.random() < edge else int(rng.choice([-1, 1]))
            want = side * int(rng.choice([1, 2]))
            if want != now:
                action[i], ordered[i] = {-2: 0, -1: 1, 1: 5, 2: 6}[want], 1
            now = want
        target[i] = now
    action[n - 1] = 2
    return target, action, ordered


def make_run(fold: int, n: int = 10_000, edge: float = 0.5, rate: float = 0.6, seed: int = 0) -> EvalRun:
    rng = np.random.default_rng([seed, fold])
    drift = np.repeat(rng.normal(0, 1.5, n // 4 + 1), 4)[:n]
    mid2 = 40_000 + np.cumsum(np.round(2 * drift + rng.normal(0, 3, n)).astype(np.int64))
    lead = np.append(drift[1:], 0.0)
    held = np.ones(n, np.int64)
    held[-1] = 0
    quiet = np.full(n, 2), np.zeros(n)
    baselines = {
        "flat": account(mid2, np.zeros(n, np.int64), *quiet),
        "buy and hold": account(mid2, held, *quiet),
        "random": account(mid2, *walk(n, lead, rate, 0.0, rng)),
        "imbalance": account(mid2, *walk(n, lead, 0.3, 0.35, rng)),
    }
    policy = account(mid2, *walk(n, lead, rate, edge, rng))
    return EvalRun(
        fold=fold,
        ts=START + fold * n * SECOND + SECOND * np.arange(n, dtype=np.int64),
        row=(fold + 1) * n + np.arange(n, dtype=np.int64),
        session=np.zeros(n, np.int32),
        policy=policy,
        baselines=baselines,
        entropy_frac=np.clip(rng.normal(0.55, 0.15, n), 0.01, 1).astype(np.float32),
        q_agree=(rng.random(n) < 0.7).astype(np.int8),
    )


def metric_lines(steps: int = 1500, every: int = 25, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(every, steps + 1, every):
        x = step / steps
        noise = rng.normal(0, 0.02, 4)
        line = {
            "step": step,
            "sps": 64.0 + 5 * noise[0],
            "l_q": 2.6 * np.exp(-3 * x) + 0.8 + noise[0],
            "l_pi": -0.02 - 0.05 * x + noise[1],
            "l_v": 0.9 * np.exp(-2 * x) + 0.3 + noise[2],
            "l_aux": 1.08 - 0.25 * x + noise[3] / 2,
            "entropy": 1.4 - 0.6 * x + noise[3],
            "wr": 0.35 + 0.33 * (1 - np.exp(-4 * x)) + noise[1],
            "hold_pct": 85 - 30 * x + 50 * noise[2],
            "grad_norm": 0.8 + abs(noise[0]) * 8,
            "gamma": 0.95 - 0.05 * x,
            "tau": 0.01 * (1 + 0.3 * np.sin(5 * x)),
            "ppo_clip": 0.2 + 0.05 * x,
            "entropy_coef": 0.03 * np.exp(-x),
            "per_alpha": 0.6 + 0.1 * x,
            "reward_scale": 0.2 * (1 - 0.5 * x),
            "rollout_len": [16, 16, 32][min(2, int(3 * x))],
        }
        line |= {
            f"lr_{g}": 2e-3 * (1 - 0.8 * x) * k for g, k in zip(("encoder", "q", "policy", "value", "aux"), range(1, 6))
        }
        lines.append({k: float(v) if k != "step" else v for k, v in line.items()})
    return lines


def make_result(run: EvalRun, cfg: EvalConfig | None = None, trials: int = 4, **training) -> FoldResult:
    n = len(run.ts)
    first, last = (int(run.ts[0]), int(run.ts[-1])) if n else (START, START)
    study = load_config("cpu-demo")
    return make_fold_result(
        run,
        cfg or EvalConfig(),
        windows=Windows(
            train_rows=(run.fold * n, (run.fold + 1) * n - 180),
            test_rows=((run.fold + 1) * n, (run.fold + 2) * n),
            train_ts=(first - n * SECOND, first - 180 * SECOND),
            test_ts=(first, last),
            purge_rows=180,
        ),
        market=Market(
            symbol="SYNTH",
            tick_size=0.25,
            multiplier=50.0,
            sampling="1 s",
            counts={"records": 68_792},
            cleaning="dropped pre-open=925",
            notes=("a spread is assumed",),
        ),
        training=Training(
            **{"steps": 1500, "gpu_seconds": 0.0, "interrupted_seconds": 12.5, "attempts": 2, "device": "cpu"}
            | training
        ),
        provenance=Provenance(
            run_id="synth-3f-7b1c2d",
            seed=0,
            config_digest=study.digest(),
            data_digest="9f" * 32,
            code_sha="0123456789abcdef0123456789abcdef01234567",
            versions={"python": "3.11.2", "numpy": "2.4.0", "foxhunt": "0.1.0"},
        ),
        trials=trials,
    )


def write_study(root: Path, edges: tuple[float | None, ...] = (0.9, 0.8, 0.3), n: int = 10_000) -> Path:
    """A run folder with a fold for each edge; None leaves that fold without a result, metrics and attempts."""
    cfg = load_config("cpu-demo")
    root.mkdir(parents=True, exist_ok=True)
    (root / "study.json").write_text(json.dumps({"run_id": root.name, "config": cfg.model_dump(mode="json")}))
    for fold, edge in enumerate(edges):
        folder = root / f"fold{fold}"
        folder.mkdir(exist_ok=True)
        if edge is None:
            continue
        lines = metric_lines(seed=fold)
        (folder / "metrics-0.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines[:30]))
        (folder / "metrics-1.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines[20:]))
        events = [
            {"event": "start", "attempt": 0, "time": 1.8e9, "resumed_step": 0, "node": "cpu-a"},
            {"event": "end", "attempt": 0, "time": 1.8e9 + 14, "last_step": 760, "why": "interrupted", "exit_code": 75},
            {"event": "start", "attempt": 1, "time": 1.8e9 + 26, "resumed_step": 500, "node": "cpu-b"},
            {"event": "end", "attempt": 1, "time": 1.8e9 + 50, "last_step": 1500, "why": "done", "exit_code": 0},
        ]
        (folder / "attempts.jsonl").write_text("".join(json.dumps(x) + "\n" for x in events))
        run = make_run(fold, n=n, edge=edge)
        write_fold_files(folder, run, make_result(run, curve=training_curve(lines)))
    return root
