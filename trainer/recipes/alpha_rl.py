"""Recipe alpha-rl: one step is one transition of all B backtests and one gradient update.

    windows of: what the environments see | PER sample | served rollout rows | s' of the sample
    encode all of them with the online weights in one pass, s' with the target weights, too     (branch)
    collect: policy -> draw -> env.step                                                         (branch)
    learn:   losses -> backward over sample and rollout rows
    join, then the writes: Adam and Polyak, priorities, rollout row, n-step transition, masses, controllers, clock

All passes and branches read weights and replay as they were before the step, whatever their timing. The host only
chooses which region runs: collect alone until replay and rollout hold enough, and the boundary region when a rollout is
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# the vocabulary
from kernels import carry_hidden, gather_windows
from kernels.isv import METRICS, OUTPUTS, SIGNALS, SLOTS
from trainer.config import StudyConfig

# stage 1: the fold's rows
from trainer.data.folds import Fold
from trainer.device import Device, Field, allocate
from trainer.device.fields import CHECKPOINT_COPY
from trainer.device.memory import by_arena

# stage 2: the environment
from trainer.env.environment import Environment, env_fields, start_rows
from trainer.env.market import market_fields, session_bounds

# stage 4: what learns
from trainer.learn import controllers, evaluator, replay, rollout
from trainer.learn.optimizer import optimizer_fields, optimizer_step
from trainer.learn.validation import STREAM, Validation, validation_fields

# stage 3: the network and its losses
from trainer.nets.losses import act, acting_fields, q_loss, rollout_loss
from trainer.nets.network import Network

VALIDATION_ROWS = 256  # rows of a validation segment
LEARNT = ("opt.param", "opt.m", "opt.v", "opt.target")  # what must stay finite
MULTIPLYING = ("main", "learn", "target", "tails", "gradients", STREAM)  # branches with matrix products


def validation_lanes(cfg: StudyConfig, market: Any, fold: Fold) -> list[tuple[int, int]]:
    """Segments (first row, last row) of the validation slice, which are walked side by side."""
    lanes = evaluator.session_lanes(np.asarray(market.session), fold.val, cfg.net.window)
    return evaluator.segment_lanes(lanes, VALIDATION_ROWS)


def workspaces(device: Device) -> dict[str, int]:
    """Bytes by name of what matrix products need beside their arrays; nothing where they need none."""
    size = len(MULTIPLYING) * device.workspace_bytes
    return {"workspaces": size} if size else {}


class AlphaRL:
    """One fold's training. Everything it is lies in `store`; `step()` is the whole host loop of a step."""

    def __init__(self, device: Device, cfg: StudyConfig, market: Any, fold: Fold, real: Any = np.float32):
        self.device, self.cfg = device, cfg
        self.net = Network(cfg.net, market.n_features)
        self.store = allocate(device, self._fields(market, fold), real)
        s = self.store
        self.env = Environment(device, cfg, s)
        self.opt, self.acting = s.ns("opt"), s.ns("acting")
        self.online = self.net.weights(s["opt.param"], s.ns("online"))
        self.target = self.net.weights(s["opt.target"], s.ns("target"))
        self._cut_passes()
        self.grads = self.net.layout.views(s["opt.grad"])
        self.collect_region = device.region(self._collect_step, "collect")
        self.learn_region = device.region(self._learn_step, "collect_and_learn")
        self.boundary_region = device.region(self._boundary, "rollout_end")
        self.warm_steps = replay.warm_steps(cfg)
        self.boundary = rollout.Boundary(device, s)
        self.steps = 0
        segments = validation_lanes(cfg, market, fold)
        self.validator = evaluator.Evaluator(device, cfg, s, segments, real) if segments else None
        self.validation = Validation(device, s, self.validator)
        # Two versions: the host reads those of the step before while those of the newest are on their way.
        self.readings = device.readback({"isv": s["isv"], "bad": s["opt.bad"]}, slots=2)
        self.readings.push()
        assert s.arena is not None
        self.frozen = device.readback({"state": s.arena.flat}, slots=1, large=True)

    def _fields(self, market: Any, fold: Fold) -> list[Field]:
        cfg, b, m = self.cfg, self.cfg.env.n_backtests, self.cfg.learn.batch
        first, last = session_bounds(np.asarray(market.session))
        starts = start_rows(first, last, fold.train, cfg.net.window)
        layout = self.net.layout
        return [
            *market_fields(market, cfg, market.normalisation(fold.train), fold.train),
            *controllers.bus_fields(cfg),
            *env_fields(cfg, b, starts, fold.train[1] - 1),
            Field("policy.h", (b, cfg.net.hidden), doc="recurrent state before the row now seen"),
            *optimizer_fields(layout.init(cfg.learn.seed), layout.segments),
            *rollout.staging_fields(cfg),
            *rollout.rollout_fields(cfg),
            *replay.replay_fields(cfg),
            *replay.batch_fields(cfg),
            *acting_fields("acting", b),
            *validation_fields(layout.size),
            *self.net.weight_fields("online"),
            *self.net.weight_fields("target"),
            *self.net.fields("joint", 3 * m + b, backward=2 * m),
            *self.net.fields("next", m),
        ]

    def _cut_passes(self) -> None:
        """The online pass and its parts by windows, and the target's pass over s', whose inputs are the same."""
        m, self.joint = self.cfg.learn.batch, self.store.ns("joint")
        whole = 3 * m + self.cfg.env.n_backtests
        names = [field.name for field in self.net.fields("joint", whole)]
        parts = (0, 2 * m), (2 * m, 3 * m), (3 * m, whole)
        self.batch, self.next_online, self.seen = (self.joint.cut_rows(*part, names) for part in parts)
        shared = {name: self.next_online[name] for name in ("private", "h_prev")}
        self.next_target = self.store.ns("next").with_arrays(**shared)

    # -- host side --
    @property
    def step_count(self) -> int:
        return self.steps

    @property
    def env_steps(self) -> int:
        return self.cfg.env.n_backtests

    def step(self) -> None:
        if self.boundary.finished and self.steps >= self.warm_steps:
            self.learn_region()
        else:
            self.collect_region()
        if self.boundary.step():
            self.boundary_region()
            self.boundary.passed()
        self.steps += 1
        self.readings.push()

    def freeze(self) -> Callable[[], dict[str, np.ndarray]]:
        """Takes the state as it is at this step boundary, without waiting, while training goes on.

        The returned function waits for its host copies, on any thread, and gives them by name: whole and unchanged
        until the next `freeze`, which must come after they were used.
        """
        self.frozen.push()
        return self._frozen_arrays

    def _frozen_arrays(self) -> dict[str, np.ndarray]:
        found = self.frozen.pull()
        assert found is not None
        return self.store.state_in(found["state"])

    def snapshot(self) -> dict[str, np.ndarray]:
        """Host copies of the caller's own of every array of kind "state"; waits for the device."""
        assert self.store.arena is not None
        return self.store.state_in(self.device.to_host(self.store.arena.flat))

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raises ValueError when the arrays are not those of this recipe (the config digest was checked before)."""
        own = dict(self.store.items("state"))
        if own.keys() != arrays.keys():
            raise ValueError(f"checkpoint and recipe differ in {sorted(own.keys() ^ arrays.keys())}")
        for name, array in own.items():
            if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
                raise ValueError(f"checkpoint array {name} is {arrays[name].dtype}{arrays[name].shape}")
            self.device.fill(array, arrays[name])
        self.steps = int(self.device.to_host(self.store["clock.step"])[0])
        self.boundary.sync()
        self.validation.sync()
        self.readings.push()

    def metrics(self, lag: int = 0) -> dict[str, float]:
        """Figures of the newest step (waits for it), or with `lag` 1 of the one before."""
        bus = self._reading("isv", lag)
        own = {f"device_{name}_mib": round(size / 2**20, 1) for name, size in self.device.memory().items()}
        return {name: float(f"{bus[SLOTS[name]]:.6g}") for name in (*METRICS, *OUTPUTS, *SIGNALS)} | own

    def arenas(self) -> dict[str, int]:
        """Bytes of each arena of training and validation and of what the device adds to them, largest first."""
        sizes: dict[str, int] = {}
        for store in (self.store, *([self.validator.store] if self.validator else [])):
            for name, array in store.arrays.items():  # both have some of the same names
                sizes[name] = sizes.get(name, 0) + array.nbytes
        if copied := self.frozen.device_bytes:
            sizes[CHECKPOINT_COPY] = copied
        return by_arena(sizes | workspaces(self.device))

    def went_bad(self, lag: int = 0) -> bool:
        """Whether a gradient was not finite up to the newest step, or with `lag` 1 up to the one before."""
        return bool(self._reading("bad", lag)[0])

    def _reading(self, name: str, lag: int) -> np.ndarray:
        found = self.readings.pull(lag)
        assert found is not None, "no step was taken yet"
        return found[name]

    def begin_validation(self, lag: int) -> None:
        """Takes the weights as they are now for a greedy pass over the validation slice, beside the training."""
        self.validation.begin(self.steps, lag)

    def validated(self, last: bool = False) -> dict[str, float]:
        """After each step: figures of a pass whose result is due, or at the `last` step of one under way, else none."""
        return self.validation.after_step(self.steps, last)

    def validate(self) -> dict[str, float]:
        """A whole pass at once."""
        self.begin_validation(1)
        return self.validated(last=True)

    def first_bad_array(self, arrays: Mapping[str, np.ndarray] | None = None) -> str | None:
        """Name of the first array of the optimizer with a NaN or infinity, and of the tensor that it is in: of a
        snapshot, or of now (waits for it)."""
        if arrays is None:
            arrays = {name: self.device.to_host(self.store[name]) for name in (*LEARNT, "opt.bad")}
        for name in LEARNT:
            bad = np.flatnonzero(~np.isfinite(arrays[name]))
            if bad.size:
                return f"{name} ({self.net.layout.at(int(bad[0]))})"
        return "opt.grad" if arrays["opt.bad"][0] else None

    # -- regions --
    def _see(self) -> None:
        """What the environments see -> the inputs of the network that acts."""
        self.net.prepare(self.device, self.online)
        rollout.stage_seen(self.device, self.store, self.seen)
        self._gather(self.store["env.row"], self.seen)

    def _act(self) -> None:
        """Head output of what was seen -> actions -> the environments' next row."""
        d, s, seen, env = self.device, self.store, self.seen, self.store.ns("env")
        act(d, self.cfg.learn, seen.out, env.mask, s["clock.step"], self.acting)
        self.env.step(self.acting.action)
        d.launch(carry_hidden.KERNEL, seen.h, env.valid, s["policy.h"])

    def _learn(self) -> None:
        d, s, cfg, sample, isv = self.device, self.store, self.cfg.learn, self.store.ns("sample"), self.store["isv"]
        with d.branch("target"):
            self._gather(sample.next_row, self.next_target)
            self.net.prepare(d, self.target)
            self.net.forward(d, self.target, self.next_target)
        self._gather(s["batch.row"], self.batch)
        self._gather(sample.next_row, self.next_online)
        self.net.forward(d, self.online, self.joint)
        rollout_loss(d, cfg, self.batch, s.ns("served"), isv)
        d.join()
        with d.branch("collect"):
            self._act()
        outs = self.next_online.out, self.next_target.out
        q_loss(d, cfg, self.batch, *outs, sample, sample.priority, isv)
        self.net.backward(d, self.online, self.grads, self.batch)
        d.join()

    def _collect_step(self) -> None:
        d, s = self.device, self.store
        self._see()
        self.net.forward(d, self.online, self.seen)
        self._act()
        self._write()
        controllers.measure(d, s)

    def _write(self) -> None:
        """The step's transitions, after everything that reads rollout or replay."""
        rollout.write(self.device, self.store, self.seen)
        replay.write(self.device, self.store, self.seen)
        replay.refresh(self.device, self.store)

    def _learn_step(self) -> None:
        d, s = self.device, self.store
        with d.branch("seen", urgent=True):
            self._see()
        with d.branch("learn", urgent=True):
            replay.sample(d, s, self.cfg.learn)
            rollout.serve(d, s, self.cfg.learn)
            replay.gather(d, s, self.batch, self.next_online)
        d.join()
        with d.branch("learn", urgent=True):
            self._learn()
        d.join()
        with d.branch("writes"):
            replay.update(d, s)
            self._write()
        optimizer_step(d, self.cfg.learn, self.cfg.lr_decay_steps, self.opt, s["isv"])
        d.join()
        controllers.control(d, s)
        controllers.measure(d, s)

    def _boundary(self) -> None:
        rollout.finish(self.device, self.store, self.cfg.learn)

    def _gather(self, rows: Any, into: Any) -> None:
        m = self.store.ns("market")
        values = m.features, m.mean, m.std, m.ts_gap, self.net.first
        self.device.launch(gather_windows.KERNEL, rows, *values, into.x, into.ts)
