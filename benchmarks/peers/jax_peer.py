"""The peer in JAX: the whole step is one jitted function whose state is donated, the end of a rollout another one."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import ops_jax as xp
from benchmarks.peers import step, weights
from kernels.isv import GROUPS, OUTPUTS
from trainer.config import StudyConfig
from trainer.learn.rollout import TM
from trainer.nets.network import Network

LEARNT = ("param", "target", "m", "v")
FIXED = ("market.", "const.", "controllers.", *(f"env.{name}" for name in step.SETTINGS))
LR0 = OUTPUTS.index(f"lr_{GROUPS[0]}")


class JaxPeer:
    """A run that starts from foxhunt's arrays in the middle of learning; `tf32` as `trainer` means it.

    folded: the stem as one product, and one pass for s' and acting.
    """

    name = "JAX"

    def __init__(
        self,
        cfg: StudyConfig,
        arrays: dict[str, np.ndarray],
        tf32: bool = True,
        options: Any = None,
        folded: bool = False,
    ):
        self.cfg, self.precision, self.folded = cfg, "tensorfloat32" if tf32 else "highest", folded
        self.layout = Network(cfg.net, arrays["market.features"].shape[1]).layout
        self._jit = partial(jax.jit, compiler_options=options)
        self._step = self._jit(self._whole_step, donate_argnums=0)
        self._boundary = self._jit(self._finish_rollout, donate_argnums=0)
        self._losses = self._jit(self._loss_figures)
        self.boundaries = 0
        self.load(arrays)

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes over foxhunt's state."""
        state = {name: jnp.array(array) for name, array in step.state_of(self.cfg, arrays, self.folded).items()}
        self.data = {name: x for name, x in state.items() if name.startswith(FIXED)}
        learnt: dict[str, Any] = {"count": jnp.array(arrays["opt.count"][0], "float32")}
        for kind in LEARNT:
            tensors = weights.split(self.layout, np.asarray(arrays[f"opt.{kind}"]))
            learnt[kind] = {name: jnp.array(x) for name, x in tensors.items()}
        changing = {name: x for name, x in state.items() if name not in self.data}
        self.state = {"learnt": learnt, "key": jax.random.key(self.cfg.learn.seed), "run": changing}
        self._sync()

    def _sync(self) -> None:
        run = self.state["run"]
        self.filled = int(run["rollout.filled"][0])
        self.length = int(run["rollout.length"][int(run["rollout.active"][0])])

    # -- the step --
    def step(self) -> None:
        self.state = self._step(self.state, self.data)
        self.filled += 1
        if self.filled > self.length:
            self.state = self._boundary(self.state, self.data)
            self.boundaries += 1
            self._sync()

    def _whole_step(self, state: Any, data: Any) -> Any:
        b, m = self.cfg.env.n_backtests, self.cfg.learn.batch
        key, own = jax.random.split(state["key"])
        keys = jax.random.split(own, 3)
        draws = (
            jax.random.uniform(keys[0], (b,), "float32"),
            *(jax.random.uniform(k, (n,), "float64") for k, n in zip(keys[1:], (b, m))),
        )
        run = dict(state["run"]) | data
        with jax.default_matmul_precision(self.precision):
            learnt = self.advance(run, state["learnt"], draws)
        return {"learnt": learnt, "key": key, "run": {name: run[name] for name in state["run"]}}

    def advance(self, run: Any, learnt: Any, draws: Any) -> Any:
        """One step with given draws (acting [B], starts [B], replay [M]): changes `run`, returns the new `learnt`."""
        cfg = self.cfg
        given = (xp, cfg, run, learnt["param"], learnt["target"], *step.draw(xp, cfg, run, draws[2]))
        if self.folded:
            batch, chosen = step.together(*given, draws[0])
        else:
            batch, chosen = step.prepare(*given), step.choose(xp, cfg, run, learnt["param"], draws[0])
        step.collect(xp, cfg, run, chosen, draws[1])
        (figures, priority), grads = self._gradient(run, learnt["param"], batch)
        learnt, more = self._optimise(run, learnt, grads)
        step.finish(xp, cfg, run, batch, priority, figures | more)
        return learnt

    def _gradient(self, run: Any, params: Any, batch: Any) -> Any:
        def total(p: Any) -> Any:
            value, figures, priority = step.loss(xp, self.cfg, run, p, batch)
            return value, (figures, priority)

        grads, aux = jax.grad(total, has_aux=True)(params)
        return aux, grads

    def _optimise(self, run: Any, old: Any, grads: Any) -> Any:
        """Clip by the global norm, Adam, Polyak target; figures for the controllers."""
        cfg, outputs = self.cfg.learn, run["bus.outputs"]
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in grads.values()))
        scale, t = jnp.minimum(1.0, cfg.grad_clip / (norm + 1e-6)), old["count"] + 1
        factor = jnp.maximum(0.0, 1 - old["count"] / cfg.lr_decay_steps) if cfg.lr_decay_steps else jnp.float32(1)
        new: dict[str, Any] = {"count": t, "param": {}, "target": {}, "m": {}, "v": {}}
        sums = jnp.zeros((len(GROUPS), 3), "float32")
        for name, grad in grads.items():
            grad, group = grad * scale, weights.group_of(name)
            m = cfg.adam_b1 * old["m"][name] + (1 - cfg.adam_b1) * grad
            v = cfg.adam_b2 * old["v"][name] + (1 - cfg.adam_b2) * grad * grad
            root = jnp.sqrt(v / (1 - cfg.adam_b2**t)) + cfg.adam_eps
            change = -outputs[LR0 + group] * factor / (1 - cfg.adam_b1**t) * m / root
            param = old["param"][name] + change
            target = old["target"][name] + outputs[1] * (param - old["target"][name])
            for kind, value in (("m", m), ("v", v), ("param", param), ("target", target)):
                new[kind][name] = value
            gap = param - target
            sums = sums.at[group].add(jnp.stack([jnp.sum(x * x) for x in (change, param, gap)]))
        return new, step.optimiser_figures(xp, sums, norm, factor)

    def _finish_rollout(self, state: Any, data: Any) -> Any:
        key, own = jax.random.split(state["key"])
        run = dict(state["run"]) | data
        step.memory.finish_rollout(xp, self.cfg, run, jax.random.uniform(own, (TM * self.cfg.env.n_backtests,)))
        return state | {"key": key, "run": {name: run[name] for name in state["run"]}}

    # -- what the contest asks --
    def losses(self, slots: np.ndarray, index: np.ndarray) -> dict[str, float]:
        """Figures of the losses on one given batch, by bus name, by the functions that the steps are made of; nothing
        changes."""
        return {n: float(x) for n, x in self._losses(self.state, self.data, jnp.array(slots), jnp.array(index)).items()}

    def _loss_figures(self, state: Any, data: Any, slots: Any, index: Any) -> Any:
        run, learnt = state["run"] | data, state["learnt"]
        with jax.default_matmul_precision(self.precision):
            given = (xp, self.cfg, run, learnt["param"], learnt["target"], slots, index)
            acting = jnp.zeros(self.cfg.env.n_backtests, "float32")  # draws that no loss reads
            batch = step.together(*given, acting)[0] if self.folded else step.prepare(*given)
            return step.loss(xp, self.cfg, run, learnt["param"], batch)[1]

    def run(self, steps: int) -> float:
        """Seconds of `steps` steps, synchronised at both ends."""
        jax.block_until_ready(self.state)
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        jax.block_until_ready(self.state)
        return time.perf_counter() - started

    def step_with(self, draws: tuple[np.ndarray, ...]) -> None:
        """One step with given draws in [0, 1): acting [B] float32, episode starts [B], replay [M] float64."""

        def given(state: Any, data: Any, draws: Any) -> Any:
            run = state["run"] | data
            with jax.default_matmul_precision(self.precision):
                learnt = self.advance(run, state["learnt"], draws)
            return state | {"learnt": learnt, "run": {name: run[name] for name in state["run"]}}

        self.state = self._jit(given)(self.state, self.data, tuple(jnp.array(x) for x in draws))

    def finish_rollout(self) -> None:
        self.state = self._boundary(self.state, self.data)

    def arrays(self) -> dict[str, np.ndarray]:
        """The state on the host, weights and moments as foxhunt's arenas."""
        learnt = self.state["learnt"]
        found = {f"opt.{kind}": weights.join(self.layout, learnt[kind]) for kind in LEARNT}
        return found | {name: np.asarray(x) for name, x in self.state["run"].items()}

    def ready(self) -> bool:
        """Whether everything that a step may need is compiled."""
        return self.boundaries > 0

    def parameters(self) -> int:
        return sum(x.size for x in self.state["learnt"]["param"].values())

    def metrics(self) -> dict[str, float]:
        return step.bus.metrics(np.asarray(self.state["run"]["bus.metrics"]))
