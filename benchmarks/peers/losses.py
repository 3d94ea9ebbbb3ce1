"""Acting and the two losses of the peers, as array code: kernels/policy_sample.py, c51_loss.py and ppo_loss.py.

Letters: docs/architecture.md. The figures have the names of the bus.
"""

from __future__ import annotations

from typing import Any

from kernels.heads import N_ACTIONS, N_ATOMS
from trainer.config import LearnConfig
from trainer.nets.heads import AUX, POLICY, VALUE, Q

State = dict[str, Any]
MASKED = -1e30  # logit of an invalid action: its probability is exactly 0, and 0 times its logarithm is 0


def act(xp: Any, cfg: LearnConfig, out: Any, mask: Any, uniform: Any) -> State:
    """action, log_mu, value [B] from the head output [B, W]; uniform [B] in [0, 1)."""
    mu = _mixture(xp, cfg, _log_pi(xp, out, mask), mask)
    # A parallel sum may fall by a rounding where an action has no mass, so only valid actions are looked at.
    running = xp.where(mask != 0, xp.cumsum(mu, 1), 0.0)
    above = running > (uniform * xp.amax(running, 1))[:, None]
    action = xp.argmax(xp.cast(above, "int32"), 1)
    return {"action": action, "log_mu": xp.log(xp.pick(mu, action)), "value": out[:, VALUE.start]}


def _log_pi(xp: Any, out: Any, mask: Any) -> Any:
    return xp.log_softmax(xp.where(mask != 0, out[:, POLICY], MASKED), -1)


def _mixture(xp: Any, cfg: LearnConfig, log_pi: Any, mask: Any) -> Any:
    """mu = (1 - eps) pi + eps / n_valid over the valid actions."""
    valid = xp.cast(mask != 0, "float32")
    return (1 - cfg.epsilon) * xp.exp(log_pi) + cfg.epsilon * valid / xp.sum(valid, 1)[:, None]


def _atoms(xp: Any, cfg: LearnConfig, like: Any) -> Any:
    step = (cfg.v_max - cfg.v_min) / (N_ATOMS - 1)
    return cfg.v_min + xp.cast(xp.arange(N_ATOMS, like), "float32") * step


def q_target(xp: Any, cfg: LearnConfig, s: State, batch: State, online: Any, target: Any) -> tuple[Any, State]:
    """The double-DQN n-step target on the fixed atoms [M, Z], from head outputs at s' [M, W]; its figures."""
    gamma, scale = s["bus.outputs"][0], s["bus.outputs"][5]
    atoms, m = _atoms(xp, cfg, online), online.shape[0]
    powers = gamma ** xp.cast(xp.arange(cfg.n_step, online), "float32")
    gain = scale * xp.sum(batch["rewards"] * powers, 1)
    discount = xp.where(batch["terminal"] == 0, gamma ** xp.cast(batch["n_used"], "float32"), 0.0)
    expected = xp.sum(xp.softmax(online[:, Q].reshape(m, N_ACTIONS, N_ATOMS), -1) * atoms, 2)
    best = xp.argmax(xp.where(batch["next_mask"] != 0, expected, MASKED), 1)
    probs = xp.softmax(xp.pick(target[:, Q].reshape(m, N_ACTIONS, N_ATOMS), best), -1)
    moved = xp.clip(gain[:, None] + discount[:, None] * atoms, cfg.v_min, cfg.v_max)
    apart = xp.abs(moved[:, None] - atoms[:, None]) * ((N_ATOMS - 1) / (cfg.v_max - cfg.v_min))  # [M, i, j]
    projected = xp.sum(xp.clip(1 - apart, 0.0, None) * probs[:, None], 2)
    total = gain + discount * xp.sum(probs * atoms, 1)
    spread = total - xp.mean(total, 0)
    edge = xp.mean(projected[:, 0] + projected[:, -1], 0)
    return projected, {"target_std": xp.sqrt(xp.mean(spread * spread, 0)), "edge_mass": edge}


def losses(xp: Any, cfg: LearnConfig, s: State, batch: State, out: Any) -> tuple[Any, State, Any]:
    """Total loss of the joint head output [2M, W], detached figures, raw priorities [M]."""
    m = batch["is_weight"].shape[0]
    q, figures, priority = _q_loss(xp, cfg, batch, out[:m])
    policy, more = _policy_loss(xp, cfg, s, batch, out[m:])
    value, aux, rest = _regressions(xp, cfg, batch, out[m:])
    total = cfg.weight_q * q + cfg.weight_policy * policy + cfg.weight_value * value + cfg.weight_aux * aux
    figures = {**figures, **more, **rest}
    return total, {name: xp.stop(x) for name, x in figures.items()}, xp.stop(priority)


def _q_loss(xp: Any, cfg: LearnConfig, batch: State, out: Any) -> tuple[Any, State, Any]:
    logits = xp.pick(out[:, Q].reshape(out.shape[0], N_ACTIONS, N_ATOMS), batch["q_action"])
    log_p = xp.log_softmax(logits, -1)
    ce = -xp.sum(batch["target"] * log_p, 1)
    loss = xp.mean(batch["is_weight"] * ce, 0)
    return loss, {"l_q": loss, "q_mean": xp.mean(xp.sum(xp.exp(log_p) * _atoms(xp, cfg, out), 1), 0)}, ce


def _mean(xp: Any, x: Any, counted: Any) -> Any:
    """Mean over the rows that count; 0 when none does."""
    return xp.sum(xp.where(counted, x, 0.0), 0) / xp.clip(xp.sum(xp.cast(counted, "float32"), 0), 1.0, None)


def _policy_loss(xp: Any, cfg: LearnConfig, s: State, batch: State, out: Any) -> tuple[Any, State]:
    """Clipped policy gradient less the entropy bonus, means over the valid rows."""
    clip, bonus = s["bus.outputs"][2], s["bus.outputs"][3]
    live, mask = batch["valid"] != 0, batch["mask"]
    log_pi = _log_pi(xp, out, mask)
    entropy = -xp.sum(xp.exp(log_pi) * log_pi, 1)
    # Rows that do not count may hold anything: they get ratio 1.
    mu = xp.where(live, xp.pick(_mixture(xp, cfg, log_pi, mask), batch["action"]), 1.0)
    log_ratio = xp.where(live, xp.log(mu) - batch["log_mu"], 0.0)
    ratio, gain = xp.exp(log_ratio), xp.where(live, batch["advantage"], 0.0)
    held = xp.minimum(xp.maximum(ratio, 1 - clip), 1 + clip)
    loss = _mean(xp, xp.maximum(-gain * ratio, -gain * held), live)
    n_valid = xp.sum(xp.cast(mask != 0, "float32"), 1)
    figures = {
        "l_pi": loss,
        "entropy": _mean(xp, entropy, live),
        "entropy_frac": _mean(xp, entropy / xp.log(xp.clip(n_valid, 2.0, None)), live),
        "approx_kl": _mean(xp, ratio - 1 - log_ratio, live),
        "clip_frac": _mean(xp, xp.cast(xp.abs(ratio - 1) > clip, "float32"), live),
    }
    return loss - bonus * figures["entropy"], figures


def _regressions(xp: Any, cfg: LearnConfig, batch: State, out: Any) -> tuple[Any, Any, State]:
    """The clipped value loss and the cross entropy of the market's direction."""
    live, v = batch["valid"] != 0, out[:, VALUE.start]
    near = xp.minimum(xp.maximum(v, batch["value"] - cfg.value_clip), batch["value"] + cfg.value_clip)
    error, held = v - batch["returns"], near - batch["returns"]
    value = 0.5 * _mean(xp, xp.maximum(error * error, held * held), live)
    log_p = xp.log_softmax(out[:, AUX], -1)
    label = xp.cast(batch["aux_label"], "int32")
    aux = -_mean(xp, xp.pick(log_p, xp.clip(label, 0, None)), live & (label >= 0))
    return value, aux, {"l_v": value, "l_aux": aux, "value_mean": _mean(xp, v, live)}
