"""Prioritised replay and rollouts of the peers: draw, gather, write, and the end of a rollout.

Buffers of foxhunt's shape [2, TM, B, ...] are [2 TM, B, ...] here. Masses are the same integers, so the same priorities
give the same importance weights; draws come from the framework's own generator.
"""

from __future__ import annotations

from typing import Any

from kernels.gae import STD_FLOOR
from kernels.gather_windows import CLIP
from kernels.nstep_write import NEVER
from kernels.per_mass import EPSILON, MAX_MASS, SCALE
from kernels.per_sample import BETA_STEPS
from trainer.config import StudyConfig
from trainer.learn.rollout import TM

State = dict[str, Any]
SEEN = ("row", "private", "h_prev")  # what the network reads of a stored step
RING = ("row", "private", "h_prev", "mask", "action", "reward", "valid", "done")
STAGED = (*RING, "value", "log_mu")
SERVED = ("action", "log_mu", "mask", "valid", "value", "advantage", "returns")


def windows(xp: Any, cfg: StudyConfig, s: State, rows: Any) -> tuple[Any, Any]:
    """Normalised windows [R, K, F or X] that end on `rows` [R], and their elapsed times [R]."""
    back = xp.arange(cfg.net.window, rows) - (cfg.net.window - 1)
    x = (xp.take(s["market.features"], rows[:, None] + back) - s["market.mean"]) / s["market.std"]
    return xp.clip(x, -CLIP, CLIP), xp.take(s["market.ts_gap"], rows)


# -- drawing --
def draw_slots(xp: Any, cfg: StudyConfig, s: State, uniform: Any) -> Any:
    """Stratified proportional draw of M slots; uniform [M] float64 in [0, 1)."""
    running = xp.cumsum(xp.cast(_masses(xp, s), "int64"), 0)
    edges = (xp.cast(xp.arange(cfg.learn.batch + 1, uniform), "int64") * running[-1]) // cfg.learn.batch
    span = xp.clip(edges[1:] - edges[:-1], 1, None)
    point = edges[:-1] + xp.cast(xp.floor(uniform * xp.cast(span, "float64")), "int64")
    return xp.clip(xp.search_right(running, point), None, running.shape[0] - 1)


def importance(xp: Any, cfg: StudyConfig, s: State, slots: Any) -> tuple[Any, State]:
    """(N P)^-beta over its largest [M], and figures per_beta, priority_ess."""
    mass = _masses(xp, s)
    count, total = xp.sum(xp.cast(mass > 0, "float32"), 0), xp.sum(xp.cast(mass, "int64"), 0)
    root = xp.cast((mass + 128) >> 8, "int64")
    squares = xp.cast(xp.sum(root * root, 0), "float32")
    done = xp.cast(s["clock.step"][0], "float32")
    beta = cfg.learn.per_beta + (1 - cfg.learn.per_beta) * xp.clip(done / BETA_STEPS, None, 1.0)
    total = xp.cast(total, "float32")
    share = xp.clip(xp.cast(xp.take(mass, slots), "float32"), 1.0, None) * (count / total)
    weight = xp.exp(-beta * xp.log(share))
    ess = total / squares * (total / 65536.0) / count
    return weight / xp.amax(weight, 0), {"per_beta": beta, "priority_ess": ess}


def _masses(xp: Any, s: State) -> Any:
    """Raw priorities -> fixed-point masses, int32 [C]."""
    priority, alpha = s["replay.priority"], s["bus.outputs"][4]
    mass = xp.exp(alpha * xp.log(xp.clip(priority, 0.0, None) + EPSILON)) * SCALE
    mass = xp.clip(xp.round(mass), 1.0, float(MAX_MASS))
    return xp.cast(xp.where(priority >= 0, mass, 0.0), "int32")


def serve(xp: Any, cfg: StudyConfig, s: State) -> Any:
    """The next M rows of the finished rollout: flat indices into [2 TM, B]."""
    b, m = cfg.env.n_backtests, cfg.learn.batch
    finished = 1 - s["rollout.active"]
    n = xp.take(s["rollout.length"], finished) * b
    position = s["rollout.position"]
    position = xp.where((position + 1) * m > n, 0, position)
    index = xp.take(s["rollout.order"], position * m + xp.arange(m, position)) + finished * (TM * b)
    xp.assign(s, "rollout.position", position + 1)
    return index


# -- the batch --
def gather(xp: Any, cfg: StudyConfig, s: State, slots: Any, index: Any) -> tuple[State, State, State]:
    """Drawn slots and served rows -> what was seen: of the joint pass (2M rows), at s' (M); what the losses read."""
    rolled = {n: xp.take(_flat(s, n), index) for n in (*SEEN, *SERVED)}
    replayed = {n: xp.take(s[f"replay.{n}"], slots) for n in SEEN}
    following = {n: xp.take(s[f"replay.next_{n}"], slots) for n in SEEN}
    joint = {n: xp.concat([replayed[n], rolled[n]], 0) for n in SEEN}
    batch = {n: rolled[n] for n in SERVED}
    for n in ("next_mask", "rewards", "n_used", "terminal"):
        batch[n] = xp.take(s[f"replay.{n}"], slots)
    batch["q_action"] = xp.take(s["replay.action"], slots)
    batch["aux_label"] = xp.take(s["market.aux_label"], rolled["row"])
    return joint, following, batch


def _flat(s: State, name: str) -> Any:
    array = s[f"rollout.{name}"]
    return array.reshape(-1, *array.shape[2:])


def inputs(xp: Any, cfg: StudyConfig, s: State, stored: State) -> State:
    """What was seen -> the network's inputs."""
    x, ts = windows(xp, cfg, s, stored["row"])
    return {"x": x, "private": stored["private"], "h_prev": stored["h_prev"], "ts": ts}


# -- writing --
def write(xp: Any, cfg: StudyConfig, s: State) -> None:
    """Staging -> rollout row and ring; the n-step transition that is complete now -> replay."""
    _write_rollout(xp, s)
    sets, step = cfg.learn.n_step + 1, s["ring.pushed"] + 0
    for name in RING:
        xp.put(s, f"ring.{name}", step % sets, s[f"staging.{name}"][None])
    _write_transition(xp, cfg, s, step)
    xp.assign(s, "ring.pushed", step + 1)


def _write_rollout(xp: Any, s: State) -> None:
    """Closes the rollout before it when that was full: its bootstrap is the value just staged."""
    active, filled = s["rollout.active"], s["rollout.filled"]
    full = filled == xp.take(s["rollout.length"], active)
    bootstrap = xp.where(full, s["staging.value"], s["rollout.bootstrap"])
    active, filled = xp.where(full, 1 - active, active), xp.where(full, 0, filled)
    for name in STAGED:
        xp.put(s, f"rollout.{name}", active * TM + filled, s[f"staging.{name}"][None])
    xp.assign(s, "rollout.bootstrap", bootstrap)
    xp.assign(s, "rollout.active", active)
    xp.assign(s, "rollout.filled", filled + 1)


def _write_transition(xp: Any, cfg: StudyConfig, s: State, step: Any) -> None:
    """The step n rows ago and the observation up to n rows later, from the ring; as kernels/nstep_write.py."""
    n, b = cfg.learn.n_step, cfg.env.n_backtests
    first = step - n
    places = [(first + i) % (n + 1) for i in range(n + 1)]
    done = [xp.take(s["ring.done"], at)[0] for at in places[:n]]
    going = done[0] == done[0]
    used, terminal, rewards = xp.cast(going, "int32") * 0, done[0] != done[0], []
    for i in range(n):
        rewards.append(xp.where(going, xp.take(s["ring.reward"], places[i])[0], 0.0))
        used = used + xp.cast(going, "int32")
        terminal = terminal | (going & (done[i] == 2))
        going = going & (done[i] == 0)
    lanes, last = xp.arange(b, used), (first + used) % (n + 1)
    blocks = {name: xp.take(s[f"ring.{name}"], places[0])[0] for name in (*SEEN, "action")}
    for name in (*SEEN, "mask"):
        ring = s[f"ring.{name}"]
        blocks[f"next_{name}"] = xp.take(ring.reshape(-1, *ring.shape[2:]), last * b + lanes)
    blocks["rewards"], blocks["n_used"], blocks["terminal"] = xp.stack(rewards, 1), used, terminal
    valid = xp.take(s["ring.valid"], places[0])[0] != 0
    blocks["priority"] = xp.where(valid, s["replay.max_priority"], NEVER)
    slot = (first * b) % s["replay.priority"].shape[0]
    for name, block in blocks.items():
        xp.put(s, f"replay.{name}", slot, block)


def update_priorities(xp: Any, s: State, slots: Any, priority: Any) -> None:
    """Cross entropies of the drawn slots. A slot drawn twice has the same one twice."""
    largest = xp.maximum(s["replay.max_priority"], xp.amax(priority, 0))
    xp.assign(s, "replay.priority", xp.put_each(s["replay.priority"], slots, priority))
    xp.assign(s, "replay.max_priority", largest)


# -- the end of a rollout --
def finish_rollout(xp: Any, cfg: StudyConfig, s: State, uniform: Any) -> None:
    """Advantages and returns of the finished rollout, the order in which it is served, the next T.

    uniform [TM * B] in [0, 1). The recursion over rows is a linear recurrence, solved in log2(TM) doublings.
    """
    b = cfg.env.n_backtests
    buffer = 1 - s["rollout.active"]
    length = xp.take(s["rollout.length"], buffer)
    at = xp.arange(TM, buffer)
    within = (at < length)[:, None]
    block = {n: xp.take(s[f"rollout.{n}"], buffer * TM + at) for n in ("reward", "value", "valid", "done")}
    value, live = block["value"], (block["valid"] != 0) & within
    gamma, scale = s["bus.outputs"][0], s["bus.outputs"][5]
    following = xp.concat([value[1:], s["rollout.bootstrap"][None]], 0)
    following = xp.where((at == length - 1)[:, None], s["rollout.bootstrap"], following)
    delta = scale * block["reward"] + xp.where(block["done"] != 2, gamma * following, 0.0) - value
    carried, factor = (
        xp.where(live, delta, 0.0),
        xp.where(live & (block["done"] == 0), gamma * cfg.learn.gae_lambda, 0.0),
    )
    shift = 1
    while shift < TM:
        pad = xp.zeros((shift, b), carried)
        carried = carried + factor * xp.concat([carried[shift:], pad], 0)
        factor = factor * xp.concat([factor[shift:], pad], 0)
        shift *= 2
    count = xp.clip(xp.sum(xp.sum(xp.cast(live, "float32"), 1), 0), 1.0, None)
    mean = xp.sum(xp.sum(carried, 1), 0) / count
    centred = xp.where(live, carried - mean, 0.0)
    std = xp.sqrt(xp.sum(xp.sum(centred * centred, 1), 0) / count)
    xp.put(s, "rollout.advantage", buffer * TM, centred / (std + STD_FLOOR))
    xp.put(s, "rollout.returns", buffer * TM, xp.where(within, carried + value, 0.0))

    rows = xp.arange(TM * b, buffer) // b
    xp.assign(s, "rollout.order", xp.argsort(xp.where(rows < length, uniform, 2.0)))
    active = s["rollout.active"]
    served = xp.cast(xp.take(s["rollout.length"], active)[0], "float32")
    xp.assign(s, "bus.rollout_kl", xp.stack([s["bus.signals"][2], served], 0))
    xp.put(s, "rollout.length", active, xp.cast(s["bus.outputs"][6:7], "int32"))
    xp.assign(s, "rollout.position", s["rollout.position"] * 0)
