"""The peer in PyTorch: pieces compiled by torch.compile, the whole step captured in one CUDA graph, fused Adam.

Collect and learn run on two streams inside the graph, as foxhunt's branches do. The end of a rollout is a graph of its
own. On a CPU everything runs eagerly: that is for tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._inductor.config

from benchmarks.peers import ops_torch as xp
from benchmarks.peers import step, weights
from kernels.isv import GROUPS, OUTPUTS
from trainer.config import StudyConfig
from trainer.learn.rollout import TM
from trainer.nets.network import Network

WARMUP = 3  # eager steps before the capture: they compile, and size cuBLAS's workspaces
ATEN = "max-autotune-aten"  # max-autotune whose products are cuBLAS's: no Triton products to compile, minutes less
LR0, TAU = OUTPUTS.index(f"lr_{GROUPS[0]}"), OUTPUTS.index("tau")


class TorchPeer:
    """A run that starts from foxhunt's arrays in the middle of learning; `tf32` as `trainer` means it.

    mode: of torch.compile or ATEN, None for eager. overlap: collect and learn on two streams. folded: the stem as one
    product, and one pass for s' and acting; only the environment is then beside learning.
    """

    name = "PyTorch"

    def __init__(
        self,
        cfg: StudyConfig,
        arrays: dict[str, np.ndarray],
        device: str,
        tf32: bool = True,
        mode: str | None = None,
        overlap: bool = True,
        folded: bool = False,
    ):
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if mode == ATEN:
            torch._inductor.config.max_autotune_gemm_backends = "ATEN"
            mode = "max-autotune-no-cudagraphs"
        self.cfg, self.device, self.folded = cfg, torch.device(device), folded
        self.captures = self.device.type == "cuda"
        self.layout = Network(cfg.net, arrays["market.features"].shape[1]).layout
        self.s = {name: self._tensor(x) for name, x in step.state_of(cfg, arrays, folded).items()}
        own = weights.split(self.layout, arrays["opt.param"])
        self.param = {name: torch.nn.Parameter(self._tensor(x)) for name, x in own.items()}
        self.target, self.before = ({n: p.detach().clone() for n, p in self.param.items()} for _ in range(2))
        self.rates = [torch.zeros((), device=self.device) for _ in GROUPS]
        self.optimizer = self._optimizer()
        b, m = cfg.env.n_backtests, cfg.learn.batch
        self.draws = [torch.empty(n, dtype=torch.float64, device=self.device) for n in (b, b, m)]
        self.order_draw = torch.empty(TM * b, device=self.device)
        self.load(arrays)

        def compiled(body: Callable[..., Any]) -> Callable[..., Any]:
            # One shape a piece, so nothing is dynamic; a break in a graph is an error.
            return torch.compile(body, mode=mode, fullgraph=True, dynamic=False) if mode else body

        # Apart, the environment does not become part of a reduction's kernel, which Triton then fails to compile.
        self._choose, self._collect = compiled(self._choose_body), compiled(self._collect_body)
        self._draw, self._prepare = compiled(self._draw_body), compiled(self._prepare_body)
        self._together = compiled(self._together_body)
        self._loss, self._finish = compiled(self._loss_body), compiled(self._finish_body)
        # Adam is one fused kernel a group, norms of many tensors are PyTorch's multi-tensor ones; the rest is compiled.
        self._scale, self._follow = compiled(self._scale_body), compiled(self._follow_body)
        self._figures = compiled(self._figures_body)
        self.main, self.side = (torch.cuda.Stream() for _ in range(2)) if self.captures else (None, None)
        self.overlap = overlap and self.captures
        self.graphs: dict[str, Any] = {}
        self.calls: dict[str, int] = {}

    def _tensor(self, x: np.ndarray) -> Any:
        return torch.from_numpy(np.array(x)).to(self.device)

    def _optimizer(self) -> Any:
        """Fused Adam; the rate of each of the five groups is a tensor that the controllers' outputs are copied into."""
        cfg, on_gpu = self.cfg.learn, self.device.type == "cuda"
        groups = [
            {
                "params": [p for name, p in self.param.items() if weights.group_of(name) == i],
                "lr": rate if on_gpu else 0.0,
            }
            for i, rate in enumerate(self.rates)
        ]
        betas = (cfg.adam_b1, cfg.adam_b2)
        return torch.optim.Adam(groups, betas=betas, eps=cfg.adam_eps, fused=on_gpu, capturable=on_gpu)

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes over foxhunt's state, in place: a captured graph goes on from it."""
        self.synchronize()
        with torch.no_grad():
            for name, x in step.state_of(self.cfg, arrays, self.folded).items():
                self.s[name].copy_(self._tensor(x))
            kinds = {k: weights.split(self.layout, arrays[f"opt.{k}"]) for k in ("param", "target", "m", "v")}
            for name, p in self.param.items():
                p.copy_(self._tensor(kinds["param"][name]))
                self.target[name].copy_(self._tensor(kinds["target"][name]))
                found = self.optimizer.state[p]
                for ours, theirs in (("exp_avg", "m"), ("exp_avg_sq", "v")):
                    found.setdefault(ours, torch.zeros_like(p)).copy_(self._tensor(kinds[theirs][name]))
                count = torch.tensor(float(arrays["opt.count"][0]))
                on = self.device if self.device.type == "cuda" else "cpu"
                found.setdefault("step", torch.zeros((), device=on)).copy_(count)
        self.synchronize()
        self._sync()

    def _sync(self) -> None:
        """Reads where the rollout stands, as foxhunt's host does at the end of one."""
        self.filled = int(self.s["rollout.filled"][0])
        self.length = int(self.s["rollout.length"][int(self.s["rollout.active"][0])])

    # -- the step --
    def step(self) -> None:
        self._replay("step", self._whole_step)
        self.filled += 1
        if self.filled > self.length:
            self.finish_rollout()
            self.synchronize()
            self._sync()

    def finish_rollout(self) -> None:
        self._replay("boundary", self._boundary)

    def _replay(self, name: str, body: Callable[[], None]) -> None:
        """The body eagerly for its first calls, then captured once and replayed: always one step a call."""
        if not self.captures:
            body()
            return
        calls = self.calls[name] = self.calls.get(name, 0) + 1
        with torch.cuda.stream(self.main):
            if calls <= WARMUP:
                body()
                return
            if name not in self.graphs:
                self.optimizer.zero_grad(set_to_none=True)  # the gradients then live in the graph's pool
                self.graphs[name] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[name], stream=self.main):
                    body()
            self.graphs[name].replay()

    def _whole_step(self) -> None:
        for draw in self.draws:
            draw.uniform_()
        self.advance(self.draws)

    def advance(self, draws: Any) -> None:
        """One step with given draws: acting [B], episode starts [B], replay [M], float64 in [0, 1)."""
        if self.folded:  # `chosen` lives until both streams have met, or its memory would be another's
            batch, chosen = self._together(*self._draw(draws[2]), draws[0])
            self._beside(lambda: self._collect(chosen, draws[1]))
        else:
            self._beside(lambda: self._collect(self._choose(draws[0]), draws[1]))
            batch = self._prepare(*self._draw(draws[2]))
        total, figures, priority = self._loss(batch)
        total.backward()
        if self.overlap:
            torch.cuda.current_stream().wait_stream(self.side)
        figures = {**figures, **self._optimise()}
        self._finish({"slots": batch["slots"]}, priority, figures)

    def _beside(self, body: Callable[[], None]) -> None:
        """On the side stream, after what is on the main one so far; without overlap right here."""
        if not self.overlap:
            body()
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            body()

    @torch.no_grad()
    def _choose_body(self, draw: Any) -> Any:
        return step.choose(xp, self.cfg, self.s, self.param, _float32(draw))

    @torch.no_grad()
    def _collect_body(self, chosen: Any, draw: Any) -> None:
        step.collect(xp, self.cfg, self.s, chosen, draw)

    @torch.no_grad()
    def _draw_body(self, draw: Any) -> Any:
        return tuple(x.to(xp.INDEX) for x in step.draw(xp, self.cfg, self.s, draw))

    @torch.no_grad()
    def _prepare_body(self, slots: Any, index: Any) -> Any:
        return step.prepare(xp, self.cfg, self.s, self.param, self.target, slots, index)

    @torch.no_grad()
    def _together_body(self, slots: Any, index: Any, draw: Any) -> Any:
        return step.together(xp, self.cfg, self.s, self.param, self.target, slots, index, _float32(draw))

    def _loss_body(self, batch: Any) -> Any:
        return step.loss(xp, self.cfg, self.s, self.param, batch)

    @torch.no_grad()
    def _finish_body(self, batch: Any, priority: Any, figures: Any) -> None:
        step.finish(xp, self.cfg, self.s, batch, priority, figures)

    @torch.no_grad()
    def _optimise(self) -> dict[str, Any]:
        """Clip by the global norm, Adam, Polyak target; figures for the controllers."""
        params, before, target = (list(x.values()) for x in (self.param, self.before, self.target))
        grads = [p.grad for p in params]
        count = self.optimizer.state[params[0]]["step"]
        norm, factor = self._scale(torch.stack(torch._foreach_norm(grads)), count, grads, params, before)
        if self.device.type != "cuda":  # there Adam wants numbers
            for group, rate in zip(self.optimizer.param_groups, self.rates):
                group["lr"] = float(rate)
        self.optimizer.step()
        changes, gaps = self._follow(before, params, target)
        norms = torch.stack(torch._foreach_norm([*changes, *params, *gaps]))
        self.optimizer.zero_grad(set_to_none=True)
        return dict(self._figures(norms, norm, factor))

    @torch.no_grad()
    def _scale_body(self, norms: Any, count: Any, grads: Any, params: Any, before: Any) -> Any:
        """Gradients clipped, weights kept, rates set -> norm of the gradient, factor of the rates."""
        cfg, outputs = self.cfg.learn, self.s["bus.outputs"]
        norm = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(grads, torch.clamp(cfg.grad_clip / (norm + 1e-6), max=1.0))  # as clip_grad_norm_ does
        torch._foreach_copy_(before, params)
        factor = (1 - count / cfg.lr_decay_steps).clamp(min=0) if cfg.lr_decay_steps else outputs[0] * 0 + 1
        for i, rate in enumerate(self.rates):
            rate.copy_(outputs[LR0 + i] * factor)
        return norm, factor

    @torch.no_grad()
    def _follow_body(self, before: Any, params: Any, target: Any) -> Any:
        """The target goes after the new weights -> each tensor's change (its sign apart) and distance to its target."""
        changes = torch._foreach_sub(before, params)
        gaps = torch._foreach_sub(params, target)
        moves = torch._foreach_mul(gaps, self.s["bus.outputs"][TAU])
        torch._foreach_add_(target, moves)
        return changes, torch._foreach_sub(gaps, moves)

    @torch.no_grad()
    def _figures_body(self, norms: Any, norm: Any, factor: Any) -> Any:
        """norms [3 tensors]: of changes, weights and gaps."""
        squares = norms.reshape(3, -1) ** 2
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        sums = torch.stack([part.sum(1) for part in squares.split(sizes, 1)])  # [5, 3]
        return step.optimiser_figures(xp, sums, norm, factor)

    @torch.no_grad()
    def _boundary(self) -> None:
        step.memory.finish_rollout(xp, self.cfg, self.s, self.order_draw.uniform_())

    # -- what the contest asks --
    def losses(self, slots: np.ndarray, index: np.ndarray) -> dict[str, float]:
        """Figures of the losses on one given batch, by bus name, by the functions that the steps are made of; nothing
        that a step reads changes. Gradients are on, as in a step: off, torch.compile would make others."""
        self.synchronize()
        given = [self._tensor(x).to(xp.INDEX) for x in (slots, index)]
        batch = self._together(*given, self.draws[0].zero_())[0] if self.folded else self._prepare(*given)
        return {name: float(x) for name, x in self._loss(batch)[1].items()}

    def step_with(self, draws: tuple[np.ndarray, ...]) -> None:
        """One step, not captured, with given draws in [0, 1): acting [B], episode starts [B], replay [M]."""
        self.synchronize()
        self.advance([self._tensor(np.asarray(x, np.float64)) for x in draws])

    def arrays(self) -> dict[str, np.ndarray]:
        """The state on the host, weights and moments as foxhunt's arenas."""
        self.synchronize()
        state = self.optimizer.state
        kinds = {"param": self.param, "target": self.target}
        kinds |= {
            k: {n: state[p][of] for n, p in self.param.items()} for k, of in (("m", "exp_avg"), ("v", "exp_avg_sq"))
        }
        found = {f"opt.{k}": weights.join(self.layout, {n: _host(x) for n, x in t.items()}) for k, t in kinds.items()}
        return found | {name: _host(x) for name, x in self.s.items()}

    def synchronize(self) -> None:
        if self.captures:
            torch.cuda.synchronize()

    def run(self, steps: int) -> float:
        """Seconds of `steps` steps, synchronised at both ends."""
        self.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.synchronize()
        return time.perf_counter() - started

    def ready(self) -> bool:
        """Whether every graph exists, so that no capture falls into a timed step."""
        return not self.captures or {"step", "boundary"} <= self.graphs.keys()

    def parameters(self) -> int:
        return sum(p.numel() for p in self.param.values())

    def metrics(self) -> dict[str, float]:
        self.synchronize()
        return step.bus.metrics(_host(self.s["bus.metrics"]))


def _float32(draw: Any) -> Any:
    """24 bits of a draw in [0, 1), as float32 holds them: rounding up to 1 is out of the question."""
    return xp.cast(xp.floor(draw * 2.0**24), "float32") * 2.0**-24


def _host(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy()
