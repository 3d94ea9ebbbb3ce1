"""The ISV bus of the peers: signals of the environment's step and the twelve controllers, as array code.

The bus is four arrays: outputs [12], signals [13], metrics [16], each in the order of kernels/isv.py, and the
controllers' state [12, 8].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.controllers import BAND, GAMMA, LENGTH, MIN_GAIN, OWN, PERIOD, RATE, TABLE
from kernels.isv import METRICS, OUTPUTS, SIGNALS, SLOTS, STATE, STATE_PER_CONTROLLER
from kernels.signals import DECAY, MIN_TRADES

State = dict[str, Any]
READ = tuple(SIGNALS.index(c.signal) for c in TABLE)  # the signal of each controller
KL_LENGTH = SIGNALS.index("rollout_kl_len")
PARTS = {"outputs": OUTPUTS, "signals": SIGNALS, "metrics": METRICS}


def split(isv: np.ndarray) -> dict[str, np.ndarray]:
    """foxhunt's bus [585] -> the arrays of the peers' bus."""
    out = {f"bus.{part}": isv[[SLOTS[name] for name in names]] for part, names in PARTS.items()}
    first = SLOTS[f"state_{OUTPUTS[0]}_0"]
    n = len(OUTPUTS) * STATE_PER_CONTROLLER
    out["bus.state"] = isv[first : first + n].reshape(len(OUTPUTS), STATE_PER_CONTROLLER)
    out["bus.rollout_kl"] = isv[[SLOTS["rollout_kl"], SLOTS["rollout_kl_len"]]]
    return out


def constants() -> dict[str, np.ndarray]:
    """Columns of the controllers' table, float32 [12]."""
    columns = {"factor": [c.factor for c in TABLE], "goal": [c.target for c in TABLE], "step": [c.step for c in TABLE]}
    columns["direction"] = [c.direction for c in TABLE]
    return {f"const.{name}": np.array(values, np.float32) for name, values in columns.items()}


def metrics(vector: np.ndarray) -> dict[str, float]:
    """Metrics by name."""
    return dict(zip(METRICS, vector.tolist()))


def finish_step(xp: Any, s: State, figures: State) -> None:
    """`figures`: what this step measured, by bus name. Controllers, then the signals of trading, then the clock."""
    kl = s["bus.rollout_kl"]
    figures = {**figures, "rollout_kl": kl[0], "rollout_kl_len": kl[1]}
    _control(xp, s, _vector(xp, s, "signals", figures))
    figures = {**figures, **_trading(xp, s)}
    signals, metrics = (_vector(xp, s, part, figures) for part in ("signals", "metrics"))
    xp.assign(s, "bus.signals", signals)
    xp.assign(s, "bus.metrics", metrics)
    xp.assign(s, "clock.step", s["clock.step"] + 1)


def _vector(xp: Any, s: State, part: str, figures: State) -> Any:
    """The bus part with new figures where there are any."""
    old = s[f"bus.{part}"]
    names = PARTS[part]
    return xp.stack([xp.cast(figures[n], "float32") if n in figures else old[names.index(n)] for n in names], 0)


def _trading(xp: Any, s: State) -> State:
    """kernels/signals.py: shares and means as ratios of decaying sums."""
    e = {name: s[f"env.{name}"] for name in ("valid", "reward", "ordered", "closed", "closed_pnl", "closed_rows")}
    live, ended = e["valid"] != 0, e["closed"] != 0

    def count(which: Any) -> Any:
        return xp.sum(xp.cast(which, "float32"), 0)

    n_ended = count(ended)
    now = [n_ended, count(xp.where(ended, e["closed_rows"], 0)), count((e["closed_pnl"] > 0) & ended), count(live)]
    now += [count(live & (e["ordered"] == 0)), xp.sum(xp.where(live, e["reward"], 0.0), 0)]
    sums = s["signals.sums"] * DECAY + xp.stack(now, 0)
    trades = s["signals.trades"] + xp.cast(n_ended, "int64")
    xp.assign(s, "signals.sums", sums)
    xp.assign(s, "signals.trades", trades)
    traded, decided = sums[0] > 0, sums[3] > 0
    old = {n: s[f"bus.{part}"][PARTS[part].index(n)] for part in ("signals", "metrics") for n in PARTS[part]}
    hold_rows = xp.where(sums[0] >= MIN_TRADES, sums[1] / sums[0], 0.0)
    return {
        "hold_rows": xp.where(traded, hold_rows, old["hold_rows"]),
        "wr": xp.where(traded, sums[2] / sums[0], old["wr"]),
        "hold_pct": xp.where(decided, 100 * sums[4] / sums[3], old["hold_pct"]),
        "reward_mean": xp.where(decided, sums[5] / sums[3], old["reward_mean"]),
        "trades": trades[0],
    }


def _control(xp: Any, s: State, signals: Any) -> None:
    """kernels/controllers.py, all twelve as vectors; they act when the number of steps done divides by PERIOD."""
    outputs, state = s["bus.outputs"], s["bus.state"]
    column = {name: state[:, STATE.index(name)] for name in STATE}
    reading = xp.stack([signals[i] for i in READ], 0)
    same_length = signals[KL_LENGTH] == outputs[LENGTH]
    number = xp.arange(outputs.shape[0], outputs)
    present = xp.isfinite(reading) & (reading > 0) & (same_length | (number != LENGTH))
    total = column["sum"] + xp.where(present, reading, 0.0)
    count = column["count"] + xp.cast(present, "float32")
    acting = (s["clock.step"] + 1) % PERIOD == 0
    seen = acting & (count > 0)

    estimate, noise, signal = column["estimate"], column["noise_variance"], column["signal_variance"]
    innovation = total / xp.clip(count, 1.0, None) * s["const.factor"] - estimate
    first = column["updates"] == 0
    new_noise = xp.where(first, 0.0, noise + RATE * (innovation * innovation - noise))
    both = signal + new_noise
    gain = xp.where(first, 1.0, xp.clip(signal / xp.where(both > 0, both, 1.0), MIN_GAIN, None))
    change = gain * innovation
    new_signal = xp.where(first, 0.0, signal + RATE * (change * change - signal))
    estimate = xp.where(seen, estimate + change, estimate)

    own = xp.where(number == GAMMA, 1 / (1 - xp.where(number == GAMMA, outputs, 0.0)), outputs)
    goal = xp.where(s["const.goal"] == OWN, own, s["const.goal"])
    way = xp.cast(estimate > BAND * goal, "float32") - xp.cast(estimate * BAND < goal, "float32")
    moved = own * s["const.step"] ** (way * s["const.direction"])
    moved = xp.minimum(xp.maximum(moved, s["controllers.bounds"][:, 0]), s["controllers.bounds"][:, 1])
    moved = xp.where(number == GAMMA, 1 - 1 / moved, moved)
    move = seen & (s["controllers.frozen"] == 0) & (way != 0)

    new = {
        "estimate": estimate,
        "noise_variance": xp.where(seen, new_noise, noise),
        "signal_variance": xp.where(seen, new_signal, signal),
        "gain": xp.where(seen, gain, column["gain"]),
        "sum": xp.where(acting, 0.0, total),
        "count": xp.where(acting, 0.0, count),
        "updates": column["updates"] + xp.cast(seen, "float32"),
        "target": xp.where(acting, goal, column["target"]),
    }
    xp.assign(s, "bus.outputs", xp.where(move, moved, outputs))
    xp.assign(s, "bus.state", xp.stack([new[name] for name in STATE], 1))
