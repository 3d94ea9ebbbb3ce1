"""The environment's step of the peers: kernels/env_step.py as pure array code, every lane alike, no subsets."""

from __future__ import annotations

from typing import Any

from kernels.env_step import (
    FLAT_FROM_LONG,
    FLAT_FROM_SHORT,
    HALF_FLAT_LONG,
    HALF_FLAT_SHORT,
    HALF_MILLI,
    HOLD,
    LOOSEN,
    MILLI,
    NO_ORDER,
    NO_STOP,
    PNL_SCALE,
    TIGHTEN,
    UNDEF,
)
from kernels.heads import N_ACTIONS
from trainer.config import StudyConfig

State = dict[str, Any]
STATE = ("row", "end_row", "episode_row", "position", "target", "pending_row", "cash", "equity", "peak", "entry_cash")
STATE += ("best", "trail", "hold_rows", "done", "mask")
OUTPUTS = ("private", "reward", "valid", "ordered", "closed", "closed_pnl", "closed_rows")
SETTINGS = ("fee", "drawdown", "episode_rows", "limit_row")


def env_step(xp: Any, cfg: StudyConfig, s: State, action: Any, start: Any) -> State:
    """New values of the arrays of `env`, by name without the prefix. action [B]; start [B]: next start rows."""
    e = {name: s[f"env.{name}"] for name in (*STATE, *SETTINGS)}
    running = e["done"] == 0

    # 1. the decision on row t
    chosen = xp.where((xp.pick(e["mask"], action) != 0) & running, xp.cast(action, "int32"), HOLD)
    wanted = xp.take(s["const.targets"], chosen)
    is_order = wanted != NO_ORDER
    target = xp.where(is_order, wanted, e["target"])
    pending = xp.where(is_order, xp.take(s["market.fill_row"], e["row"]), e["pending_row"])
    trail = e["trail"] + xp.cast(chosen == LOOSEN, "int32") - xp.cast(chosen == TIGHTEN, "int32")
    alive = xp.cast(running, "int32")
    row, episode_row = e["row"] + alive, (e["episode_row"] + alive) * alive
    hold_rows = (e["hold_rows"] + xp.cast(e["position"] != 0, "int32")) * alive
    # A lane that was done starts anew.
    row = xp.where(running, row, start)
    end_row = xp.where(running, e["end_row"], xp.minimum(xp.take(s["market.last"], start), e["limit_row"]))
    target, carried = target * alive, e["position"] * alive
    cash, equity, peak, entry_cash = e["cash"] * alive, e["equity"] * alive, e["peak"] * alive, e["entry_cash"] * alive

    # 2. row r closes
    mid = xp.cast(xp.take(s["market.mid2"], row), "int64") * HALF_MILLI
    fallen = (peak - (cash + carried * mid) >= e["drawdown"]) & running
    ending = (((row >= end_row) | (episode_row >= e["episode_rows"])) & running) | fallen
    done = xp.cast(ending, "int8") + xp.cast(fallen, "int8")

    # 3. the trade on r's book
    due = (target != carried) & (pending <= row)
    target = xp.where(ending, 0, target)
    position = xp.where(due | ending, target, carried)
    lots = position - carried
    size, way = xp.cast(xp.abs(lots), "int64"), xp.cast(xp.sign(lots), "int64")
    leaves = (carried != 0) & (carried * position <= 0) & (lots != 0)
    closing = xp.cast(xp.abs(carried), "int64") * xp.cast(leaves, "int64")
    total, total_close = _walk(xp, s, row, lots > 0, size, closing)
    at_close = cash - way * MILLI * total_close - e["fee"] * closing
    closed_pnl = xp.where(leaves, at_close - entry_cash, 0)
    closed_rows = xp.where(leaves, hold_rows, 0)
    entry_cash = xp.where(leaves, at_close, entry_cash)
    cash = cash - way * MILLI * total - e["fee"] * size

    # 4. the stop
    fresh = carried * position <= 0
    hold_rows, trail = xp.where(fresh, 0, hold_rows), xp.where(fresh, NO_STOP, trail)
    side = xp.sign(position)
    bid, ask = xp.take(s["market.bid_px"][:, 0], row), xp.take(s["market.ask_px"][:, 0], row)
    touch = xp.where(side > 0, bid, ask)
    back = xp.where(fresh, 0, xp.clip(side * (e["best"] - touch), 0, None))
    best = touch + side * back
    stop = xp.take(s["const.trail_ticks"], trail)
    hit = (position == target) & (back >= stop) & (side != 0)
    target = xp.where(hit, 0, target)
    pending = xp.where(hit, xp.take(s["market.fill_row"], row), pending)

    # 5. equity, reward, what is seen next
    now = cash + position * mid
    cost = cfg.env.inventory_penalty * xp.cast(carried * carried, "float32")
    cost = cost + cfg.env.message_cost * xp.cast(chosen != HOLD, "float32")
    peak = xp.maximum(peak, now)
    new = {
        "row": row,
        "end_row": end_row,
        "episode_row": episode_row,
        "position": position,
        "target": target,
        "pending_row": pending,
        "cash": cash,
        "equity": now,
        "peak": peak,
        "entry_cash": entry_cash,
        "best": best,
        "trail": trail,
        "hold_rows": hold_rows,
        "done": done,
        "mask": _mask(xp, cfg, s, position, target, trail),
        "reward": xp.cast(now - equity, "float32") / MILLI - cost,
        "valid": xp.cast(running, "int8"),
        "ordered": xp.cast(is_order, "int8"),
        "closed": xp.cast(leaves, "int8"),
        "closed_pnl": closed_pnl,
        "closed_rows": closed_rows,
    }
    new["private"] = _private(xp, cfg, new, back, stop, s["const.trail_ticks"][NO_STOP - 1])
    return new


def _walk(xp: Any, s: State, row: Any, buy: Any, lots: Any, first: Any) -> tuple[Any, Any]:
    """Sum of the prices of `lots` lots, and of the `first` lots among them, on the opposite side's levels."""
    price = xp.where(buy[:, None], xp.take(s["market.ask_px"], row), xp.take(s["market.bid_px"], row))
    shown = xp.where(buy[:, None], xp.take(s["market.ask_sz"], row), xp.take(s["market.bid_sz"], row))
    total, total_first, last = lots * 0, lots * 0, lots * 0
    left, left_first, known = lots, first, lots == lots
    for level in range(price.shape[1]):
        known = known & (price[:, level] != UNDEF)
        last = xp.where(known, xp.cast(price[:, level], "int64"), last)
        size = xp.cast(shown[:, level], "int64")
        taken = xp.where(known, xp.where(size == 0, left, xp.minimum(size, left)), 0)
        taken_first = xp.minimum(taken, left_first)
        total, total_first = total + taken * last, total_first + taken_first * last
        left, left_first = left - taken, left_first - taken_first
    beyond = last + xp.where(buy, 1, -1)
    return total + left * beyond, total_first + left_first * beyond


def _mask(xp: Any, cfg: StudyConfig, s: State, position: Any, target: Any, trail: Any) -> Any:
    """Valid actions of the state now seen, uint8 [B, A]."""
    large, free = cfg.env.lots_large, position == target
    stays = position * target > 0
    special = {
        HOLD: position == position,
        TIGHTEN: stays & (trail > 0),
        LOOSEN: stays & (trail < NO_STOP),
        FLAT_FROM_LONG: free & (position > 0),
        FLAT_FROM_SHORT: free & (position < 0),
        HALF_FLAT_LONG: free & (position == large),
        HALF_FLAT_SHORT: free & (position == -large),
    }
    goals = s["const.targets"]
    columns = [special[a] if a in special else free & (position != goals[a]) for a in range(N_ACTIONS)]
    return xp.cast(xp.stack(columns, 1), "uint8")


def _private(xp: Any, cfg: StudyConfig, new: State, back: Any, stop: Any, widest: Any) -> Any:
    """The eight private state values, float32 [B, 8]."""

    def real(x: Any) -> Any:
        return xp.cast(x, "float32")

    open_pnl, fall = real(new["equity"] - new["entry_cash"]), real(new["peak"] - new["equity"])
    widest, full = real(widest), xp.log1p(real(new["row"] * 0 + cfg.env.episode_len))
    columns = [
        real(new["position"]) / cfg.env.lots_large,
        real(new["target"]) / cfg.env.lots_large,
        real(new["trail"]) / NO_STOP,
        xp.clip(real(back) / widest, None, 1.0),
        xp.clip(real(xp.clip(stop - back, 0, None)) / widest, None, 1.0),
        open_pnl / (PNL_SCALE + xp.abs(open_pnl)),
        xp.clip(xp.log1p(real(new["hold_rows"])) / full, None, 1.0),
        xp.clip(fall / round(cfg.env.drawdown_ticks * MILLI), None, 1.0),
    ]
    return xp.stack(columns, 1)
