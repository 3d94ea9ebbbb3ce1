"""The contest: foxhunt and its peers, each in a process of its own that stays alive, take turns on one device.

Separate processes, because allocators, streams and compiler settings of three frameworks get in each other's way; while
one runs, the others wait for a message. All start from the same state: foxhunt's in the middle of learning.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kernels.isv import METRICS, SLOTS

# Figures of the losses that all contestants must agree on, for one batch with the same weights; names of the bus.
AGREED = ("l_q", "l_pi", "l_v", "l_aux", "entropy", "approx_kl")
TOLERANCE = {True: 5e-3, False: 1e-5}  # of a figure, by TF32; products of 10-bit mantissas are off by 3e-4 each
FLOOR = 1e-6  # absolute: an approximate KL of a policy that hardly moved is all rounding
FOLDED = "folded"  # after the framework: the same step with the stem as one product
WARMUP = 60  # foxhunt's steps after its first learning step
PEER_WARMUP, MOST_WARMUP = 40, 5000  # a peer's; more until all its graphs exist, at most
SETTLE = 5  # untimed steps at each turn


def missing(kind: str, device: str) -> str:
    """Why a peer can't run here, empty when its packages are installed."""
    framework = kind.partition(":")[0]
    if find_spec(framework) is None:
        return f"{framework} is not installed"
    if (framework, device) == ("jax", "cuda") and not any(find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
        return "jax is installed without its CUDA plugin"
    return ""


def handed_over(recipe: Any) -> dict[str, np.ndarray]:
    """All of a run's arrays that outlive a step, on the host, by field name."""
    device, store = recipe.device, recipe.store
    return {name: device.to_host(array) for kind in ("state", "data") for name, array in store.items(kind)}


# -- in a contestant's process --
class Foxhunt:
    def __init__(self, profile: str, device: str, tf32: bool, path: str):
        from trainer.config import load_config
        from trainer.data.folds import FoldPlan, make_folds
        from trainer.data.market import synthetic_market
        from trainer.device import open_device
        from trainer.recipes.alpha_rl import AlphaRL

        cfg = load_config(profile)
        market = synthetic_market("synthetic:rows=40000")
        fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
        self.device = open_device(device, tf32)
        self.recipe = AlphaRL(self.device, cfg, market, fold)
        start = self.recipe.warm_steps + WARMUP
        while self.recipe.step_count < start or not self.recipe.boundary.finished or self._ends_a_rollout():
            self.recipe.step()
        while not self.ready() or self._ends_a_rollout():
            self.recipe.step()
        np.savez(path, **handed_over(self.recipe))

    def ready(self) -> bool:
        """Whether every graph of the timed steps exists."""
        regions = (self.recipe.learn_region, self.recipe.boundary_region)
        return all(region.recorder is None or region.graph is not None for region in regions)

    def _ends_a_rollout(self) -> bool:
        return self.recipe.boundary.filled >= self.recipe.boundary.length

    def batch(self) -> dict[str, Any]:
        """The step after the state handed over: what it drew, and its losses."""
        self.recipe.step()
        store, to_host = self.recipe.store, self.device.to_host
        bus = to_host(store["isv"])
        return {
            "slots": to_host(store["sample.slots"]),
            "index": to_host(store["served.index"]),
            "losses": {name: float(bus[SLOTS[name]]) for name in AGREED},
        }

    def run(self, steps: int) -> float:
        """Seconds of `steps` steps, synchronised at both ends."""
        self.device.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            self.recipe.step()
        self.device.synchronize()
        return time.perf_counter() - started

    def parameters(self) -> int:
        from benchmarks.peers import weights

        layout = self.recipe.net.layout
        return sum(x.size for x in weights.split(layout, np.zeros(layout.size)).values())

    def metrics(self) -> dict[str, float]:
        bus = self.device.to_host(self.recipe.store["isv"])
        return {name: float(bus[SLOTS[name]]) for name in METRICS}


def _peer(kind: str, profile: str, device: str, tf32: bool, path: str) -> Any:
    from trainer.config import load_config

    with np.load(path) as saved:
        arrays = dict(saved)
    cfg, (framework, _, mode) = load_config(profile), kind.partition(":")
    folded = mode == FOLDED
    if framework == "torch":
        from benchmarks.peers.torch_peer import TorchPeer

        mode = "default" if folded else mode
        peer: Any = TorchPeer(cfg, arrays, device, tf32, mode if device == "cuda" else None, folded=folded)
    else:
        from benchmarks.peers.jax_peer import JaxPeer

        peer = JaxPeer(cfg, arrays, tf32, folded=folded)
    warm_up(peer)
    peer.load(arrays)
    return peer


def warm_up(peer: Any) -> None:
    """Steps until everything is compiled and captured, ends of rollouts as well: a graph of theirs needs several."""
    peer.run(PEER_WARMUP)
    for _ in range(MOST_WARMUP):
        if peer.ready():
            return
        peer.run(1)
    raise RuntimeError(f"not all graphs are there after {PEER_WARMUP + MOST_WARMUP} steps")


def _import(kind: str, device: str) -> None:
    """Imports what takes long, with the settings that must be made before."""
    if kind.startswith("jax"):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the others need memory as well
        os.environ["JAX_PLATFORMS"] = device
        from benchmarks.peers import jax_peer  # noqa: F401
    elif kind != "foxhunt":
        from benchmarks.peers import torch_peer  # noqa: F401


def _serve(kind: str, profile: str, device: str, tf32: bool, path: str, pipe: Connection) -> None:
    """Answers (method, arguments) with (worked, result) until None comes."""
    contestant: Any = None
    while (message := pipe.recv()) is not None:
        method, arguments = message
        try:
            if method == "import":
                answer: Any = _import(kind, device)
            elif method == "build":
                given, started = (profile, device, tf32, path), time.perf_counter()
                contestant = Foxhunt(*given) if kind == "foxhunt" else _peer(kind, *given)
                answer = time.perf_counter() - started
            else:
                answer = getattr(contestant, method)(*arguments)
            pipe.send((True, answer))
        except Exception:
            pipe.send((False, traceback.format_exc()))


# -- in the process that asks --
class Contestant:
    """A process. `tell` asks without waiting, `hear` waits for the answer; after a failure `error` says why."""

    def __init__(self, kind: str, profile: str, device: str, tf32: bool, path: str):
        context = multiprocessing.get_context("spawn")
        self.kind, self.error = kind, ""
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(kind, profile, device, tf32, path, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.rates: list[float] = []
        self.figures: dict[str, Any] = {}

    def tell(self, method: str, *arguments: Any) -> None:
        if self.error:
            return
        try:
            self.pipe.send((method, arguments))
        except OSError:
            self._died()

    def hear(self, patience: float = 600.0) -> Any:
        """The answer, None after a failure."""
        if self.error:
            return None
        try:
            if not self.pipe.poll(patience):
                self.error = f"no answer within {patience:.0f} s"
                self.process.kill()
                return None
            worked, answer = self.pipe.recv()
        except (EOFError, OSError):
            self._died()
            return None
        if worked:
            return answer
        self.error = answer
        return None

    def _died(self) -> None:
        self.process.join(10)  # its pipe is closed before its exit code is there
        self.error = f"the process ended with {self.process.exitcode}"

    def ask(self, method: str, *arguments: Any, patience: float = 600.0) -> Any:
        self.tell(method, *arguments)
        return self.hear(patience)

    def end(self) -> None:
        if self.process.is_alive() and not self.error:
            with suppress(OSError):  # it may die just now
                self.pipe.send(None)
            self.process.join(10)
        self.process.kill()


class Contest:
    """All contestants of one profile: `begin`, `build`, `wait`, `measure`, `end`, in this order.

    Contests may be built side by side, since compilers use one core or a few; they are measured one after the other.
    A peer that fails, or is not built within `patience` seconds, is left out and named.
    """

    def __init__(self, profile: str, device: str, kinds: list[str], tf32: bool, patience: float):
        self.profile, self.device, self.tf32, self.patience = profile, device, tf32, patience
        self.folder = tempfile.TemporaryDirectory(prefix="foxhunt-peers-")
        given = (profile, device, tf32, str(Path(self.folder.name) / "state.npz"))
        self.ours, *self.peers = (Contestant(kind, *given) for kind in ("foxhunt", *kinds))
        self.everyone = [self.ours, *self.peers]

    def begin(self) -> None:
        self.ours.tell("build")
        for peer in self.peers:
            peer.tell("import")

    def build(self) -> None:
        """Once foxhunt has handed its state over. Raises RuntimeError when it can't."""
        self.ours.figures["build_s"] = self.ours.hear()
        if self.ours.error:
            raise RuntimeError(f"foxhunt could not run\n{self.ours.error}")
        for peer in self.peers:
            peer.hear(self.patience)
            peer.tell("build")

    def wait(self) -> None:
        until = time.perf_counter() + self.patience
        for peer in self.peers:
            peer.figures["build_s"] = peer.hear(max(until - time.perf_counter(), 1.0))

    def measure(self, rounds: int, steps: int) -> dict[str, Any]:
        self._compare()
        for _ in range(rounds):
            for one in self.everyone:
                one.ask("run", SETTLE)
                seconds = one.ask("run", steps)
                if seconds is not None:
                    one.rates.append(steps / seconds)
        for one in self.everyone:
            one.figures["end"] = one.ask("metrics")
        about = {"profile": self.profile, "device": self.device, "tf32": self.tf32, "rounds": rounds, "steps": steps}
        return about | _figures(self.everyone)

    def _compare(self) -> None:
        """The losses of all on the batch of foxhunt's next step, and the number of parameters."""
        batch = self.ours.ask("batch")
        self.ours.figures["losses"] = batch["losses"]
        for peer in self.peers:
            found = peer.ask("losses", batch["slots"], batch["index"]) or {}
            peer.figures["losses"] = {name: found[name] for name in AGREED if name in found}
        for one in self.everyone:
            one.figures["parameters"] = one.ask("parameters")

    def end(self) -> None:
        for one in self.everyone:
            one.end()
        self.folder.cleanup()


def _figures(everyone: list[Contestant]) -> dict[str, Any]:
    found = {}
    for one in everyone:
        rates = one.rates
        if rates and not one.error:
            one.figures |= {"median": statistics.median(rates), "min": min(rates), "max": max(rates), "rates": rates}
        if one.error:
            one.figures["error"] = one.error
        found[one.kind] = one.figures
    ours = found["foxhunt"]
    for figures in found.values():
        if "median" in figures:
            figures["ratio"] = ours["median"] / figures["median"]
    return {"contestants": found}


def disagreements(result: dict[str, Any]) -> list[str]:
    """Losses and parameter counts on which a peer and foxhunt differ by more than the tolerance; runs gone astray."""
    ours, out = result["contestants"]["foxhunt"], []
    for kind, figures in result["contestants"].items():
        if figures.get("parameters") not in (None, ours["parameters"]):
            out.append(f"{kind}: {figures['parameters']} parameters, foxhunt {ours['parameters']}")
        astray = [name for name, value in (figures.get("end") or {}).items() if not math.isfinite(value)]
        if astray:
            out.append(f"{kind}: {', '.join(astray)} not finite after the timed steps: its rate counts for nothing")
        for name, value in figures.get("losses", {}).items():
            want = ours["losses"][name]
            if abs(value - want) > TOLERANCE[result["tf32"]] * abs(want) + FLOOR:
                out.append(f"{kind}: {name} {value:.6g}, foxhunt {want:.6g}")
    return out
