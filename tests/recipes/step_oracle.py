"""One learning step of alpha-rl once more in jax.numpy, float64: total loss, its gradient, clip, Adam, Polyak.

Reads the state as it was before the step and the rows that the step drew; gathers, normalises, weighs and learns by
itself. The network is tests/nets/jax_network.py, the losses are tests/kernels/loss_oracles.py: the whole path from
market rows to new weights is here without any of our kernels.
"""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kernels.isv import SLOTS
from tests.kernels.loss_oracles import WEIGHTS, jax_c51, jax_ppo
from tests.nets.jax_network import network

BETA_STEPS = 100_000
# Compiling takes longer than running: one compilation for all cases, without the costly optimisations.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# Rows of the head matrix by learning-rate group; every other tensor, and what is below row 246, is not a head.
HEAD_ROWS = {"q": (0, 231), "policy": (231, 242), "value": (242, 243), "aux": (243, 256)}


class _Net(NamedTuple):
    """What is fixed when JAX compiles; arrays are arguments, so that all cases of one shape share the work."""

    entries: tuple[tuple[str, int, tuple[int, ...]], ...]
    headdim: int
    layers: int

    def outputs(self, flat: Any, inputs: Any) -> Any:
        return network(tensors(self.entries, flat), self.headdim, self.layers, *inputs)[2]


def tensors(entries: Any, flat: Any) -> dict[str, Any]:
    """Name -> tensor, cut out of an arena by (name, first float, shape)."""
    return {name: flat[at : at + math.prod(shape)].reshape(shape) for name, at, shape in entries}


@partial(jax.jit, static_argnames=("net",), compiler_options=FAST_COMPILE)
def _gradient(param, target, joint, following, batch, bus, leak, net):
    b = SimpleNamespace(**batch, m=batch["rewards"].shape[0], n=batch["rewards"].shape[1])
    both = [jnp.concatenate(pair) for pair in zip(joint, following)]

    def leaking(x):
        """Zero, with the gradient of `leak` times x."""
        return leak * (x - jax.lax.stop_gradient(x))

    def held(x):
        return jax.lax.stop_gradient(x) + leaking(x)

    def total(p):
        out, next_online = jnp.split(net.outputs(p, both), [2 * b.m])
        next_target = net.outputs(target + leaking(p), following)
        scales = bus["gamma"], bus["reward_scale"]
        q, priority = jax_c51(
            out, next_online, next_target, b, *scales, lambda x: jax.lax.stop_gradient(x) + leaking(x)
        )
        rest, figures = jax_ppo(out, b, bus["ppo_clip"], bus["entropy_coef"])
        return q + rest, figures | {"l_q": q / WEIGHTS["q"], "priority": priority}

    return jax.grad(total, has_aux=True)(param)


class StepOracle:
    """`before`: the state by name before a learning step; `slots`, `served` [M]: what the step drew."""

    def __init__(self, recipe: Any, before: dict[str, np.ndarray], slots: np.ndarray, served: np.ndarray):
        self.cfg, self.before = recipe.cfg, before
        layout = recipe.net.layout
        self.entries, self.size = tuple((e.name, e.offset, e.shape) for e in layout.entries), layout.size
        self.market = {name: np.array(a) for name, a in recipe.store.items("data") if name.startswith("market.")}
        self.slots = slots
        self.seen, self.following, self.batch = self._replayed(slots), self._next(slots), self._batch(slots, served)
        rolled = self._rolled(served)
        self.joint = [np.concatenate(pair) for pair in zip(self.seen, rolled)]

    def isv(self, name: str) -> float:
        return float(self.before["isv"][SLOTS[name]])

    # -- inputs --
    def _inputs(self, rows: np.ndarray, private: np.ndarray, h_prev: np.ndarray) -> tuple[np.ndarray, ...]:
        """Windows [R, K, F] that end on `rows`, cut out one by one, as z-scores within 10; and the elapsed times."""
        m, k = self.market, self.cfg.net.window
        windows = np.stack([m["market.features"][r - k + 1 : r + 1].astype(np.float64) for r in rows])
        z = (windows - m["market.mean"].astype(np.float64)) / m["market.std"].astype(np.float64)
        return np.clip(z, -10, 10), private, h_prev, m["market.ts_gap"][rows].astype(np.float64)

    def _replayed(self, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._inputs(*(self.before[f"replay.{n}"][slots] for n in ("row", "private", "h_prev")))

    def _next(self, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._inputs(*(self.before[f"replay.next_{n}"][slots] for n in ("row", "private", "h_prev")))

    def _of_rollout(self, name: str, served: np.ndarray) -> np.ndarray:
        array = self.before[f"rollout.{name}"]
        return array.reshape(-1, *array.shape[3:])[served]

    def _rolled(self, served: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._inputs(*(self._of_rollout(n, served) for n in ("row", "private", "h_prev")))

    def _batch(self, slots: np.ndarray, served: np.ndarray) -> SimpleNamespace:
        replay = {n: self.before[f"replay.{n}"][slots] for n in ("next_mask", "rewards", "n_used", "terminal")}
        names = {"action": "action", "log_mu_old": "log_mu", "advantage": "advantage", "returns": "returns"}
        names |= {"value_old": "value", "mask": "mask", "valid": "valid"}
        return SimpleNamespace(
            q_action=self.before["replay.action"][slots],
            is_weight=self.importance(slots),
            aux_label=self.market["market.aux_label"][self._of_rollout("row", served)],
            **replay,
            **{ours: self._of_rollout(theirs, served) for ours, theirs in names.items()},
        )

    def importance(self, slots: np.ndarray) -> np.ndarray:
        """(N P)^-beta over its largest; P from the masses, N the slots that can be drawn."""
        mass = self.before["replay.mass"].astype(np.float64)
        beta0 = self.cfg.learn.per_beta
        beta = beta0 + (1 - beta0) * min(int(self.before["clock.step"][0]) / BETA_STEPS, 1)
        weight = ((mass > 0).sum() * mass[slots] / mass.sum()) ** -beta
        return weight / weight.max()

    def masses(self) -> np.ndarray:
        """(p + 1e-6)^alpha of the raw priorities; negative ones are never drawn."""
        raw = self.before["replay.priority"]
        return np.where(raw < 0, 0, (np.maximum(raw, 0) + 1e-6) ** self.isv("per_alpha"))

    # -- loss and gradient --
    def gradient(self, leak: bool = False) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(gradient by the whole arena [S], figures by bus slot, `priority`).

        `leak`: the gradient also flows through the target, as if its network were the online one.
        """
        names = ("gamma", "reward_scale", "ppo_clip", "entropy_coef")
        param, target = self.before["opt.param"], self.before["opt.target"]
        grad, figures = _gradient(
            *(param, target, self.joint, self.following, vars(self.batch), {name: self.isv(name) for name in names}),
            float(leak),
            net=_Net(self.entries, self.cfg.net.headdim, self.cfg.net.layers),
        )
        assert grad.dtype == np.float64
        return np.asarray(grad), {name: np.asarray(x) for name, x in figures.items()}

    # -- the step --
    def learning_rates(self) -> np.ndarray:
        """The rate of every float of the arena [S]."""
        done, decay = int(self.before["opt.count"][0]), self.cfg.learn.lr_decay_steps
        factor = max(0.0, 1 - done / decay) if decay else 1.0
        rates = np.full(self.size, self.isv("lr_encoder"))
        head = tensors(self.entries, rates)["heads.weight"]
        for group, (first, last) in HEAD_ROWS.items():
            head[first:last] = self.isv(f"lr_{group}")
        return rates * factor

    def step(self, grad: np.ndarray) -> dict[str, np.ndarray]:
        """Clip by global norm, Adam (Kingma and Ba 2015, Algorithm 1), Polyak average; arrays by field name."""
        cfg, old = self.cfg.learn, self.before
        norm = np.linalg.norm(grad)
        clipped = grad * min(1.0, cfg.grad_clip / (norm + 1e-6))
        t = int(old["opt.count"][0]) + 1
        m = cfg.adam_b1 * old["opt.m"] + (1 - cfg.adam_b1) * clipped
        v = cfg.adam_b2 * old["opt.v"] + (1 - cfg.adam_b2) * clipped**2
        m_hat, v_hat = m / (1 - cfg.adam_b1**t), v / (1 - cfg.adam_b2**t)
        param = old["opt.param"] - self.learning_rates() * m_hat / (np.sqrt(v_hat) + cfg.adam_eps)
        target = (1 - self.isv("tau")) * old["opt.target"] + self.isv("tau") * param
        return {"opt.param": param, "opt.m": m, "opt.v": v, "opt.target": target, "grad_norm": norm}
