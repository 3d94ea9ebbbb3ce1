"""A random environment, policy and network input around the learning regions: for tests of rollout and replay."""

from __future__ import annotations

import numpy as np

from trainer.config import build_config
from trainer.device import Field, allocate
from trainer.learn import controllers, replay, rollout

ROWS = 500


def small_config(**learn):
    settings = {"batch": 8, "per_capacity": 128, "rollout_len": 16} | learn
    return build_config({"env": {"n_backtests": 8}, "net": {"hidden": 16}, "learn": settings})


class Stage:
    """One recipe step as regions, with random outputs of environment and policy in place of the real ones."""

    def __init__(self, device, cfg, seed=0):
        self.device, self.cfg, self.rng = device, cfg, np.random.default_rng(seed)
        b, m, h = cfg.env.n_backtests, cfg.learn.batch, cfg.net.hidden
        env = [("row", "int32"), ("closed_rows", "int32"), ("closed_pnl", "int64"), ("reward", "real")]
        env += [(n, "int8") for n in ("valid", "done", "ordered", "closed")]
        fields = [
            *(Field(f"env.{n}", (b,), dtype) for n, dtype in env),
            Field("env.private", (b, 8)),
            Field("env.mask", (b, 11), "uint8"),
            *(Field(f"acting.{n}", (b,), d) for n, d in (("action", "int32"), ("log_mu", "real"), ("value", "real"))),
            Field("policy.h", (b, h)),
            *(Field(f"act.{name}", (b, n)) for name, n in (("private", 8), ("h_prev", h))),
            *(Field(f"{p}.private", (r, 8)) for p, r in (("joint", 2 * m), ("next", m))),
            *(Field(f"{p}.h_prev", (r, h)) for p, r in (("joint", 2 * m), ("next", m))),
            Field("market.aux_label", (ROWS,), "int8", "data", np.arange(ROWS) % 4 - 1),
            *rollout.staging_fields(cfg),
            *rollout.rollout_fields(cfg),
            *replay.replay_fields(cfg),
            *replay.batch_fields(cfg),
            *controllers.bus_fields(cfg),
        ]
        self.store = allocate(device, fields)
        self.boundary = rollout.Boundary(device, self.store)
        self.done, self.past = np.zeros(b, np.int8), []
        self.collect = device.region(self.collect_body, "collect")
        self.learn = device.region(self.learn_body, "learn")
        self.end = device.region(lambda: rollout.finish(device, self.store, cfg.learn), "end")

    def collect_body(self, learning=False):
        device, store = self.device, self.store
        act = store.ns("act")
        rollout.stage_seen(device, store, act)
        for moved in ("env.row", "env.mask", "env.private", "policy.h"):
            device.zero(store[moved])  # the environment's step, and what carries h over
        if learning:
            rollout.serve(device, store, self.cfg.learn)
            replay.sample(device, store, self.cfg.learn)
            replay.gather(device, store, store.ns("joint"), store.ns("next"))
            replay.update(device, store)
        rollout.write(device, store, act)
        replay.write(device, store, act)
        replay.refresh(device, store)
        if learning:
            controllers.control(device, store)
        controllers.measure(device, store)

    def learn_body(self):
        self.collect_body(learning=True)

    def draw(self):
        """New random values where environment, policy and loss would have written theirs."""
        rng, s, b = self.rng, self.store, len(self.done)
        valid = self.done == 0
        self.done = np.where(valid & (rng.random(b) < 0.1), rng.integers(1, 3, b), 0).astype(np.int8)
        values = {
            "env.row": rng.integers(0, ROWS, b),
            "env.reward": rng.normal(size=b) * valid,
            "env.valid": valid,
            "env.done": self.done,
            "env.ordered": rng.random(b) < 0.5,
            "env.closed": valid & (rng.random(b) < 0.3),
            "env.closed_pnl": rng.integers(-5, 6, b),
            "env.closed_rows": rng.integers(1, 9, b),
            "env.private": rng.normal(size=(b, 8)),
            "env.mask": rng.integers(0, 2, (b, 11)),
            "acting.action": rng.integers(0, 11, b),
            "acting.log_mu": rng.normal(size=b),
            "acting.value": rng.normal(size=b),
            "policy.h": rng.normal(size=(b, self.cfg.net.hidden)),
            "sample.priority": rng.exponential(size=self.cfg.learn.batch),
        }
        for name, value in values.items():
            s[name][...] = value
        self.past.append({n: np.array(s[n], copy=True) for n in values})

    @property
    def learning(self):
        return self.boundary.finished and len(self.past) > replay.warm_steps(self.cfg)

    def step(self):
        self.draw()
        (self.learn if self.learning else self.collect)()
        if self.boundary.step():
            self.end()
            self.boundary.passed()
