"""The greedy policy over rows of the market, in lockstep lanes: final evaluation and validation during training.

The encoder reads the market alone, so every row of the window is encoded once, in chunks; then the recurrent cell, the
heads and the environment walk the lanes step by step. The weights are a snapshot, copied in place. A pass is a row of
small pieces, so that it can be walked beside the training; nothing in it waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels import carry_hidden, eval_record, gather_encodings, gather_windows, scatter_rows
from kernels.eval_record import RECORDED
from trainer.config import StudyConfig
from trainer.device import Device, Field, Store, allocate, footprint
from trainer.env.environment import Environment, env_fields
from trainer.nets.losses import act, acting_fields
from trainer.nets.network import Network

CHUNK = 256  # rows encoded at a time


def session_lanes(session: np.ndarray, window: tuple[int, int], warmup: int) -> list[tuple[int, int]]:
    """(first decision row, last row) of each session inside the rows a .. b - 1; sessions too short are left out."""
    a, b = window
    edges = np.flatnonzero(np.diff(session[a:b])) + 1
    heads, tails = [0, *edges.tolist()], [*edges.tolist(), b - a]
    return [(a + h + warmup, a + t - 1) for h, t in zip(heads, tails) if h + warmup < t - 1]


def segment_lanes(lanes: list[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """The lanes cut into pieces of at most `rows` rows, for a validation curve in parallel."""
    pieces = [(start, min(start + rows, last)) for first, last in lanes for start in range(first, last, rows)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def chunk_plan(base: int, rows: int) -> np.ndarray:
    """int32 [C, 2, CHUNK]: of each chunk, which rows of the table it fills and which rows of the market they are."""
    index = np.minimum(np.arange(-(-rows // CHUNK) * CHUNK), rows - 1).reshape(-1, CHUNK)
    return np.stack([index, index + base], axis=1).astype(np.int32)


def extent(lanes: list[tuple[int, int]]) -> tuple[int, int, int]:
    """(first row of all, rows from there to the last one, steps of the longest lane)."""
    base = min(first for first, _ in lanes)
    return base, max(last for _, last in lanes) - base + 1, max(last - first for first, last in lanes)


def evaluator_fields(cfg: StudyConfig, net: Network, lanes: list[tuple[int, int]]) -> list[Field]:
    """What a pass over these lanes has of its own; the market's arrays are shared."""
    first, b = np.array([first for first, _ in lanes], np.int32), len(lanes)
    base, rows, steps = extent(lanes)
    plan = chunk_plan(base, rows)
    return [
        Field("eval.param", (net.layout.size,), kind="scratch"),
        Field("eval.first", (b,), "int32", "data", first, "first row of each lane"),
        Field("eval.plan", plan.shape, "int32", "data", plan, "see chunk_plan"),
        Field("eval.chunk", (2, CHUNK), "int32", "scratch", doc="the plan's rows of the chunk being encoded"),
        Field("eval.table", (rows, cfg.net.d_model), kind="scratch", doc="encoding of every row"),
        Field("eval.h", (b, cfg.net.hidden), kind="scratch"),
        Field("eval.cursor", (1,), "int64", "scratch"),
        Field("eval.step", (1,), "int64", "scratch", doc="clock of lanes that draw nothing"),
        *(Field(f"log.{name}", (steps, b), dtype, "scratch") for name, dtype in RECORDED),
        *env_fields(cfg, b, prefix="lane"),
        *acting_fields("acting", b),
        *net.weight_fields("eval"),
        *net.fields("chunk", CHUNK),
        *net.fields("act", b),
    ]


def pass_memory(cfg: StudyConfig, n_features: int, lanes: list[tuple[int, int]], name: str) -> dict[str, int]:
    """Bytes that a pass will take: under `name` what grows with the rows, under `lanes` what does not."""
    if not lanes:
        return {}
    sizes = footprint(evaluator_fields(cfg, Network(cfg.net, n_features), lanes))
    return {f"{name if n.startswith(('eval.', 'log.')) else 'lanes'}.{name}.{n}": size for n, size in sizes.items()}


class Evaluator:
    """Lanes [(first row, last row)] of one window. `run(param)` -> the log, host arrays [T, B] by name.

    Piece by piece: `begin(param)`, `advance(share)` up to 1, `log()`.
    """

    def __init__(
        self, device: Device, cfg: StudyConfig, market: Store, lanes: list[tuple[int, int]], real: Any = np.float32
    ):
        self.device, self.cfg = device, cfg
        features = market["market.features"]
        self.net = Network(cfg.net, features.shape[1])
        first, last = (np.array(x, np.int32) for x in zip(*lanes))
        self.base, self.rows, self.steps = extent(lanes)
        own = allocate(device, evaluator_fields(cfg, self.net, lanes), real)
        shared = {name: array for name, array in market.arrays.items() if name.startswith("market.")}
        self.store = Store([*own.fields.values()], own.arrays | shared)
        self.env = Environment(device, cfg, self.store, prefix="lane", clock="eval.step")
        self.env.reset_to(first, last)  # checks the lanes; from now on `_begin` puts them back
        self.params = self.net.weights(self.store["eval.param"], self.store.ns("eval"))
        # Looked up once: with few lanes a step is short, and names would be a tenth of it.
        self._act, self._lane, self._acting = (self.store.ns(name) for name in ("act", "lane", "acting"))
        self._recorded = self._record_arguments()
        self._index, self._rows = self.store["eval.chunk"]
        self._chunks = list(self.store["eval.plan"])
        self._logged = device.readback({name: self.store[f"log.{name}"] for name, _ in RECORDED}, slots=1)
        self.begin_region = device.region(self._begin, "eval_begin")
        self.encode_region = device.region(self._encode, "eval_encode")
        self.step_region = device.region(self._step, "eval_step")
        self.pieces, self.done = len(self._chunks) + self.steps, 0

    def run(self, param: Any) -> dict[str, np.ndarray]:
        """A whole pass with weights `param` [size]. The arrays are overwritten by the next one."""
        self.begin(param)
        self.advance(1.0)
        return self.log()

    def begin(self, param: Any) -> None:
        """Copies the weights [size] in place and puts every lane on its first row."""
        self.device.copy(self.store["eval.param"], param)
        self.begin_region()
        self.done = 0

    def advance(self, share: float) -> None:
        """Goes on until `share` (0 to 1) of the pass is on its way to the device."""
        if self.done == self.pieces:
            return
        for piece in range(self.done, math.ceil(share * self.pieces)):
            if piece < len(self._chunks):
                self.device.copy(self.store["eval.chunk"], self._chunks[piece])
                self.encode_region()
            else:
                self.step_region()
            self.done = piece + 1
        if self.done == self.pieces:
            self._logged.push()

    def log(self) -> dict[str, np.ndarray]:
        """Waits for the whole pass -> host arrays [T, B] by name."""
        assert self.done == self.pieces, "the pass is not at its end"
        found = self._logged.pull()
        assert found is not None
        return found

    def _record_arguments(self) -> list[Any]:
        s, env, acting = self.store, self._lane, self._acting
        values = [acting[n] if n in ("greedy", "q_greedy", "entropy_frac") else env[n] for n, _ in RECORDED]
        return [s["eval.cursor"], *values, *(s[f"log.{n}"] for n, _ in RECORDED)]

    def _begin(self) -> None:
        d, s = self.device, self.store
        self.net.prepare(d, self.params)
        for name in ("eval.h", "eval.cursor"):
            d.zero(s[name])
        d.copy(self._lane.start_row, s["eval.first"])
        self.env.reset_all()

    def _encode(self) -> None:
        d, chunk, m = self.device, self.store.ns("chunk"), self.store.ns("market")
        values = m.features, m.mean, m.std, m.ts_gap, self.net.first
        d.launch(gather_windows.KERNEL, self._rows, *values, chunk.x, chunk.ts)
        self.net.encode(d, self.params, chunk)
        d.launch(scatter_rows.KERNEL, chunk.enc, self._index, self.store["eval.table"])

    def _step(self) -> None:
        d, s, a, env, acting = self.device, self.store, self._act, self._lane, self._acting
        d.launch(
            gather_encodings.KERNEL,
            *(env.row, s["eval.table"], s["market.ts_gap"], self.base, a.enc, a.ts),
        )
        d.copy(a.private, env.private)
        d.copy(a.h_prev, s["eval.h"])
        self.net.head(d, self.params, a)
        act(d, self.cfg.learn, a.out, env.mask, s["eval.step"], acting)
        self.env.step(acting.greedy)
        d.launch(carry_hidden.KERNEL, a.h, env.valid, s["eval.h"])
        d.launch(eval_record.KERNEL, *self._recorded)


def summary(log: dict[str, np.ndarray]) -> dict[str, float]:
    """Figures of a validation pass: net ticks per 1,000 decisions, share of holds, mean entropy."""
    valid = log["valid"] != 0
    n = max(int(valid.sum()), 1)
    net = float((log["equity"][-1]).sum()) / 1000
    return {
        "val_net_per_1k": 1000 * net / n,
        "val_hold_pct": 100 * float((log["ordered"][valid] == 0).mean()) if valid.any() else 0.0,
        "val_entropy": float(log["entropy_frac"][valid].mean()) if valid.any() else 0.0,
        "val_rows": float(n),
    }
