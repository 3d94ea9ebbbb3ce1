"""The step of the peers in pieces, and the state they work on: what the drivers put together and compile.

    choose    windows -> acting network -> draw of the actions; what was seen -> staging
    collect   environment; what was earned -> staging
    prepare   PER draw, served rows, windows, both networks at s' -> the batch with its Q target
    loss      online network over the joint batch -> total, figures, priorities

`together` is choose and prepare in one, for a folded peer: s' and the acting windows are one pass, without gradient.
After these the driver updates the weights; then `finish`: priorities, rollout row, n-step transition, controllers,
clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers import bus, losses, memory
from benchmarks.peers.environment import OUTPUTS, STATE, env_step
from benchmarks.peers.environment import SETTINGS as LANES
from benchmarks.peers.network import forward
from kernels.isv import GROUPS
from kernels.rollout_serve import permute
from kernels.stem_weights import stem_columns
from trainer.config import StudyConfig
from trainer.env.actions import target_table
from trainer.learn.rollout import TM

State = dict[str, Any]
Params = dict[str, Any]

MARKET = ("features", "mean", "std", "ts_gap", "mid2", "fill_row", "last", "bid_px", "ask_px", "bid_sz", "ask_sz")
SETTINGS = ("starts", "trail_ticks", *LANES)
REPLAY = ("row", "private", "h_prev", "action", "rewards", "n_used", "terminal", "priority", "max_priority")
REPLAY += ("next_row", "next_private", "next_h_prev", "next_mask")
ROLLOUT = (*memory.STAGED, "advantage", "returns")
COUNTERS = ("bootstrap", "length", "active", "filled", "position")
PLAIN = ("policy.h", "clock.step", "ring.pushed", "signals.sums", "signals.trades", "controllers.frozen")
PLAIN += ("controllers.bounds", "market.aux_label")


def state_of(cfg: StudyConfig, arrays: dict[str, np.ndarray], folded: bool = False) -> dict[str, np.ndarray]:
    """A peer's state, host arrays by name, from foxhunt's in the middle of learning (state and data, by field name).

    folded: features are wide, so that windows come with the bias's column and are aligned.
    """
    names = [f"market.{n}" for n in MARKET] + [f"env.{n}" for n in (*SETTINGS, *STATE, *OUTPUTS)] + list(PLAIN)
    names += [f"ring.{n}" for n in memory.RING] + [f"replay.{n}" for n in REPLAY]
    names += [f"rollout.{n}" for n in (*ROLLOUT, *COUNTERS)]
    state = {name: np.asarray(arrays[name]) for name in names}
    for name in ROLLOUT:
        array = state[f"rollout.{name}"]
        state[f"rollout.{name}"] = array.reshape(2 * TM, *array.shape[2:])
        if name in memory.STAGED:
            state[f"staging.{name}"] = array[0, 0]
    state |= bus.split(arrays["isv"]) | bus.constants()
    state["const.targets"] = target_table(cfg.env)
    state["const.trail_ticks"] = state.pop("env.trail_ticks")
    b = cfg.env.n_backtests
    n = int(state["rollout.length"][1 - int(state["rollout.active"][0])]) * b
    order = np.arange(TM * b, dtype=np.uint32)
    order[:n] = permute(order[:n], n, int(arrays["rollout.epoch"][0]), cfg.learn.seed)
    state["rollout.order"] = order.astype(np.int32)
    return state | _wide_features(state) if folded and cfg.net.layers > 1 else state


def _wide_features(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Features | 1 | zeros, to a multiple of 8 columns; normalising leaves the new ones as they are."""
    features = state["market.features"].shape[1]

    def filled(name: str, value: float) -> np.ndarray:
        shape = *state[name].shape[:-1], stem_columns(features) - features
        more = np.full(shape, value, state[name].dtype)
        return np.concatenate([state[name], more], -1)

    found = {"market.features": filled("market.features", 0), "market.mean": filled("market.mean", 0)}
    found["market.features"][:, features] = 1
    return {**found, "market.std": filled("market.std", 1)}


def choose(xp: Any, cfg: StudyConfig, s: State, params: Params, uniform: Any) -> State:
    """The acting pass: h [B, H], action, log_mu, value [B]; uniform [B] float32 in [0, 1).

    What was seen goes into staging here, and not in the piece that changes it: torch.compile writes a copy of one
    changed array into another after the change.
    """
    h, out = forward(xp, params, cfg.net, **memory.inputs(xp, cfg, s, _see(xp, s)))
    return {**losses.act(xp, cfg.learn, out, s["env.mask"], uniform), "h": h}


def _see(xp: Any, s: State) -> State:
    """What the backtests show, as the network's inputs are stored; it goes into staging."""
    for name in ("row", "private", "mask"):
        xp.assign(s, f"staging.{name}", s[f"env.{name}"])
    xp.assign(s, "staging.h_prev", s["policy.h"])
    return {"row": s["env.row"], "private": s["env.private"], "h_prev": s["policy.h"]}


def collect(xp: Any, cfg: StudyConfig, s: State, chosen: State, uniform: Any) -> None:
    """One transition of all backtests; uniform [B] float64 in [0, 1): starts of new episodes."""
    starts = s["env.starts"]
    start = xp.take(starts, xp.cast(xp.floor(uniform * starts.shape[0]), "int32"))
    new = env_step(xp, cfg, s, chosen["action"], start)
    for name in ("action", "log_mu", "value"):
        xp.assign(s, f"staging.{name}", chosen[name])
    for name in ("reward", "valid", "done"):
        xp.assign(s, f"staging.{name}", new[name])
    for name in (*STATE, *OUTPUTS):
        xp.assign(s, f"env.{name}", new[name])
    xp.assign(s, "policy.h", chosen["h"] * xp.cast(new["valid"], "float32")[:, None])


def draw(xp: Any, cfg: StudyConfig, s: State, uniform: Any) -> tuple[Any, Any]:
    """Replay slots [M] and served rows [M]; uniform [M] float64 in [0, 1)."""
    return memory.draw_slots(xp, cfg, s, uniform), memory.serve(xp, cfg, s)


def prepare(xp: Any, cfg: StudyConfig, s: State, params: Params, target: Params, slots: Any, index: Any) -> State:
    """The batch: inputs of the joint pass, what the losses read, the Q target, and figures under `figures`."""
    joint, following, batch = memory.gather(xp, cfg, s, slots, index)
    batch["joint"], following = (memory.inputs(xp, cfg, s, stored) for stored in (joint, following))
    outs = [forward(xp, p, cfg.net, **following)[1] for p in (params, target)]
    return _completed(xp, cfg, s, slots, batch, *outs)


def together(
    xp: Any, cfg: StudyConfig, s: State, params: Params, target: Params, slots: Any, index: Any, uniform: Any
) -> tuple[State, State]:
    """The batch as from `prepare` and the actions as from `choose`: the online network sees s' and theirs at once."""
    joint, following, batch = memory.gather(xp, cfg, s, slots, index)
    m, seen = cfg.learn.batch, _see(xp, s)
    batch["joint"] = memory.inputs(xp, cfg, s, joint)
    both = memory.inputs(xp, cfg, s, {name: xp.concat([following[name], seen[name]], 0) for name in seen})
    h, out = forward(xp, params, cfg.net, **both)
    target_out = forward(xp, target, cfg.net, **{name: x[:m] for name, x in both.items()})[1]
    chosen = {**losses.act(xp, cfg.learn, out[m:], s["env.mask"], uniform), "h": h[m:]}
    return _completed(xp, cfg, s, slots, batch, out[:m], target_out), chosen


def _completed(xp: Any, cfg: StudyConfig, s: State, slots: Any, batch: State, online: Any, target: Any) -> State:
    """The batch with importance weights, the Q target from head outputs at s' [M, W], and figures."""
    batch["is_weight"], figures = memory.importance(xp, cfg, s, slots)
    batch["target"], more = losses.q_target(xp, cfg.learn, s, batch, online, target)
    return {**batch, "slots": slots, "figures": {**figures, **more}}


def loss(xp: Any, cfg: StudyConfig, s: State, params: Params, batch: State) -> tuple[Any, State, Any]:
    """Total loss to differentiate by `params`, figures, priorities [M]."""
    _, out = forward(xp, params, cfg.net, **batch["joint"])
    total, figures, priority = losses.losses(xp, cfg.learn, s, batch, out)
    return total, {**figures, **batch["figures"]}, priority


def optimiser_figures(xp: Any, sums: Any, norm: Any, factor: Any) -> dict[str, Any]:
    """sums [5, 3]: squares of change, parameters and gap to the target, by learning-rate group."""
    tiny = float(np.finfo(np.float32).tiny)
    rms = xp.sqrt(sums[:, 0]) / xp.clip(xp.sqrt(sums[:, 1]), tiny, None)
    distance = xp.sqrt(xp.sum(sums[:, 2], 0)) / xp.clip(xp.sqrt(xp.sum(sums[:, 1], 0)), tiny, None)
    figures = {f"update_rms_{group}": rms[i] for i, group in enumerate(GROUPS)}
    return figures | {"target_distance": distance, "grad_norm": norm, "lr_factor": factor}


def finish(xp: Any, cfg: StudyConfig, s: State, batch: State, priority: Any, figures: State) -> None:
    """Everything after the new weights, which add their own figures."""
    memory.update_priorities(xp, s, batch["slots"], priority)
    memory.write(xp, cfg, s)
    bus.finish_step(xp, s, figures)
