"""Final evaluation of one fold: the policy and the baselines walk the test window once, session by session.

The lanes of a pass are the window's sessions, each an account of its own that starts flat and without memory after its
warm-up rows, and is closed at its last row. Strung together in time order they make the fold's account.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import eval_record
from kernels.eval_record import RECORDED
from trainer.config import StudyConfig
from trainer.data.folds import Fold
from trainer.data.market import Market
from trainer.device import Device, Field, NumpyDevice, Store, allocate
from trainer.env.environment import Environment, env_fields
from trainer.env.market import market_fields
from trainer.errors import DataError
from trainer.learn.evaluator import Evaluator, pass_memory, session_lanes
from trainer.results.baselines import BASELINES, Rules, imbalance, random_order_rate
from trainer.results.eval_run import EvalRun, Lane, fills_from_path

ORDER, STOP, SESSION_END, DRAWDOWN_LIMIT = range(4)  # indices of eval_run.ENDS
Log = dict[str, np.ndarray]


def market_store(device: Device, market: Market, cfg: StudyConfig, fold: Fold) -> Store:
    """The market on the device, normalised by the fold's train slice."""
    return allocate(device, market_fields(market, cfg, market.normalisation(fold.train), fold.train))


def judged_lanes(cfg: StudyConfig, market: Market, fold: Fold) -> list[tuple[int, int]]:
    """(first decision row, last row) of each session of the test window. Raises DataError when there is none."""
    lanes = session_lanes(np.asarray(market.session), fold.test, cfg.net.window)
    if not lanes:
        raise DataError(
            f"fold {fold.index}: no session of the test window is longer than net.window = {cfg.net.window} rows\n"
            "use fewer folds, a finer data.sample or a smaller net.window"
        )
    return lanes


def judgement_memory(cfg: StudyConfig, market: Market, fold: Fold) -> dict[str, int]:
    """Bytes by name that judging the fold will take on the device, beside the market."""
    return pass_memory(cfg, market.n_features, judged_lanes(cfg, market, fold), "judgement")


def evaluate_fold(device: Device, cfg: StudyConfig, market: Market, store: Store, fold: Fold, param: Any) -> EvalRun:
    """Judges weights `param` [S] (on `device`) on the fold's test window. `store` holds the market's arrays."""
    lanes = judged_lanes(cfg, market, fold)
    log = Evaluator(device, cfg, store, lanes).run(param)
    policy = _lane(log, range(len(lanes)))
    used = [log["valid"][:, i] != 0 for i in range(len(lanes))]

    def joined(name: str) -> np.ndarray:
        return np.concatenate([log[name][u, i] for i, u in enumerate(used)])

    row = joined("row").astype(np.int64)
    entropy = joined("entropy_frac").astype(np.float32)
    rate = random_order_rate(int(np.abs(policy.fills.lots).sum()), len(row), cfg.env)
    return EvalRun(
        fold=fold.index,
        ts=np.asarray(market.ts)[row],
        row=row,
        session=np.asarray(market.session)[row].astype(np.int32),
        policy=policy,
        baselines=run_baselines(cfg, market, fold, lanes, rate),
        # A fraction of exactly 0 says that hold was the only valid action: there was no choice to measure.
        entropy_frac=np.where(entropy == 0, np.float32(np.nan), entropy),
        q_agree=(joined("greedy") == joined("q_greedy")).astype(np.int8),
    )


def run_baselines(
    cfg: StudyConfig, market: Market, fold: Fold, lanes: list[tuple[int, int]], order_rate: float
) -> dict[str, Lane]:
    """Every baseline on every session, as lanes of one environment on the CPU (rules are a few array expressions)."""
    device = NumpyDevice()
    names = [name for name in BASELINES for _ in lanes]
    b, steps = len(names), max(last - first for first, last in lanes)
    store = market_store(device, market, cfg, fold)
    own = allocate(
        device,
        [
            *env_fields(cfg, b, prefix="lane"),
            Field("rule.action", (b,), "int32"),
            Field("rule.zero", (b,), "int32"),
            Field("rule.real", (b,)),
            Field("rule.step", (1,), "int64"),
            Field("rule.cursor", (1,), "int64"),
            *(Field(f"log.{name}", (steps, b), dtype) for name, dtype in RECORDED),
        ],
    )
    merged = Store([*own.fields.values()], own.arrays | store.arrays)
    env = Environment(device, cfg, merged, prefix="lane", clock="rule.step")
    first, last = (np.array(x * len(BASELINES), np.int32) for x in map(list, zip(*lanes)))
    env.reset_to(first, last)
    a, z = min(f for f, _ in lanes), max(stop for _, stop in lanes) + 1
    signal = imbalance(np.asarray(market.bid_sz[a:z]), np.asarray(market.ask_sz[a:z]))
    lane, rule = merged.ns("lane"), merged.ns("rule")
    blank = {"greedy": rule.zero, "q_greedy": rule.zero, "entropy_frac": rule.real}
    values = [blank[n] if n in blank else lane[n] for n, _ in RECORDED]
    logs = [merged[f"log.{n}"] for n, _ in RECORDED]
    rules = Rules(names, signal, a, order_rate, cfg.learn.seed, (cfg.env.lots_small, cfg.env.lots_large))
    action, mask, position, row = rule.action, lane.mask, lane.position, lane.row
    for step in range(steps):
        action[...] = rules.actions(step, mask, position, row)
        env.step(action)
        device.launch(eval_record.KERNEL, rule.cursor, *values, *logs)
    log = {n: merged[f"log.{n}"] for n, _ in RECORDED}
    k = len(lanes)
    return {name: _lane(log, range(i * k, (i + 1) * k)) for i, name in enumerate(BASELINES)}


def _lane(log: Log, columns: range) -> Lane:
    """The account of some lanes strung together: each starts at 0, so sums of those before it are added."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("equity", "cash", "fee_paid", "spread_paid")}
    plain: dict[str, list[np.ndarray]] = {name: [] for name in ("position", "action_done", "ordered", "reason")}
    offset = dict.fromkeys(parts, 0)
    for i in columns:
        used = log["valid"][:, i] != 0
        column = {name: log[name][used, i] for name in log}
        flows = {
            "equity": column["equity"],
            "cash": column["cash"],
            "fee_paid": np.cumsum(column["fee_paid"]),
            "spread_paid": np.cumsum(column["spread_paid"]),
        }
        for name, values in flows.items():
            parts[name].append(values + offset[name])
            offset[name] = int(parts[name][-1][-1]) if len(values) else offset[name]
        for name in ("position", "action_done", "ordered"):
            plain[name].append(column[name])
        plain["reason"].append(_reasons(column))
    money = {name: np.concatenate(values).astype(np.int64) for name, values in parts.items()}
    other = {name: np.concatenate(values) for name, values in plain.items()}
    fills = fills_from_path(other["position"], money["cash"], money["fee_paid"], money["spread_paid"], other["reason"])
    return Lane(
        equity=money["equity"],
        fee_paid=money["fee_paid"],
        spread_paid=money["spread_paid"],
        position=other["position"].astype(np.int32),
        action=other["action_done"].astype(np.int8),
        ordered=other["ordered"].astype(np.int8),
        fills=fills,
    )


def _reasons(c: Log) -> np.ndarray:
    """Why a fill of each step happened, int8 [N]: index into ENDS.

    One order can be on its way at a time, so a fill belongs to whichever was placed last: an agent's order (`ordered`),
    or the stop's, which shows as an order on its way that the agent didn't place.
    """
    n = len(c["ordered"])
    waiting = c["target"] != c["position"]
    before = np.concatenate([[False], waiting[:-1]])
    stop = waiting & ((~before & (c["ordered"] == 0)) | (c["filled"] != 0))
    at = np.arange(n)
    last_order = np.maximum.accumulate(np.where(c["ordered"] != 0, at, -1))
    # A stop that went out at this step's close fills later: look at those before it.
    last_stop = np.concatenate([[-1], np.maximum.accumulate(np.where(stop, at, -1))[:-1]])[:n]
    reason = np.where(last_stop > last_order, STOP, ORDER)
    reason = np.where(c["done"] == 1, SESSION_END, reason)
    return np.where(c["done"] == 2, DRAWDOWN_LIMIT, reason).astype(np.int8)
