"""The bottom of the encoder: windows [R, K, F] -> the residual stream `res.{depth}` that the first computed norm reads.

`Embedding` is the linear map alone. `FoldedLayer` is the same function up to the end of the first layer, with less
arithmetic: the windows are data, so embedding, first norm and in_proj are one product with X = F + 1 columns, padded,
in place of D, and nothing flows back to its input. With x~ = [x | 1 | 0], We~ = [We | b | 0] and w the norm's weight:

    proj  = (rstd x~) folded^T,     folded = W_in diag(w) We~                  [E, X]
    rstd  = 1 / sqrt(x~^T G x~ / D + eps),  G = We~^T We~                      [X, X]
    res.1 = [y | x~] wide^T,        wide = [W_out | We~]                       [D, DI + X]

`folded`, `wide` and G are functions of the weights: `prepare` computes them, once for each set of weights in a step.
"""

from __future__ import annotations

from typing import Any

from kernels import (
    bias_rmsnorm_bwd,
    column_sum,
    residual_rmsnorm_bwd,
    stem_gram,
    stem_project,
    stem_scale,
    stem_weights,
    stem_weights_bwd,
)
from kernels.spec import Kernel
from kernels.vectors import padded
from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.layers import gradients, linear, linear_backward_weight, rows
from trainer.nets.mamba2 import EPS, MixerAll


class Embedding:
    """res.0 = We x + b. The norm after it is the first layer's."""

    depth = 0
    first = 0  # column of `x` in which a window's features begin

    def __init__(self, cfg: NetConfig, n_features: int):
        self.d, self.window, self.columns = cfg.d_model, cfg.window, n_features
        self.norm_backward: tuple[Kernel, str] = bias_rmsnorm_bwd.KERNEL, "embed.vectors"
        self.norm_partial = 2 * padded(cfg.d_model)

    def weight_fields(self, prefix: str) -> list[Field]:
        return []

    def weights(self, derived: Any) -> dict[str, Any]:
        return {}

    def prepare(self, device: Device, p: Any) -> None:
        pass

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        shape = rows, self.window, self.columns
        return [Field(f"{prefix}.x", shape, kind="scratch", doc="normalised window, the caller's")]

    def forward(self, device: Device, p: Any, act: Any) -> None:
        linear(device, act.x, p["embed.weight"], act["res.0"], p["embed.bias"])

    def backward(self, device: Device, p: Any, g: Any, act: Any, dres: Any) -> None:
        linear_backward_weight(device, dres, act.x, g["embed.weight"])

    def flops(self, rows: int) -> int:
        return 2 * rows * self.window * self.columns * self.d


class FoldedLayer:
    """res.1, the embedding and the whole first layer folded into two products and its mixer. See the module."""

    depth = 1

    def __init__(self, cfg: NetConfig, n_features: int, layer: MixerAll):
        self.layer, self.d, self.window = layer, cfg.d_model, cfg.window
        self.x = stem_weights.stem_columns(n_features)
        self.first, self.columns = layer.inner, layer.inner + self.x
        self.one_launch = stem_project.fits(self.x, self.columns, layer.width)  # of scaled_x and zcbxdt
        self.norm_backward: tuple[Kernel, str] = residual_rmsnorm_bwd.KERNEL, "layers.1.norm.weight"
        self.norm_partial = cfg.d_model

    # -- weights --
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        d, x, e = self.d, self.x, self.layer.width
        return {"folded": (e, x), "scaled": (d, x), "wide": (d, self.columns), "gram": (x, x)}

    def weight_fields(self, prefix: str) -> list[Field]:
        """What `prepare` writes, for one set of weights."""
        return [Field(f"{prefix}.stem.{key}", shape, kind="scratch") for key, shape in self._shapes().items()]

    def weights(self, derived: Any) -> dict[str, Any]:
        """Those arrays by the names under which `forward` looks for them."""
        return {f"stem.{key}": derived[f"stem.{key}"] for key in self._shapes()}

    def _parameters(self, p: Any) -> tuple[Any, ...]:
        a = self.layer.name
        return p[f"{a}.in_proj.weight"], p[f"{a}.norm.weight"], p["embed.weight"], p["embed.bias"]

    def prepare(self, device: Device, p: Any) -> None:
        """Weights -> folded, scaled = diag(w) We~, wide, gram."""
        out = (p[f"stem.{key}"] for key in self._shapes())
        device.launch(stem_weights.KERNEL, *self._parameters(p), p[f"{self.layer.name}.out_proj.weight"], *out)

    # -- activations --
    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        r, k = rows, self.window
        doc = "y of the first mixer | normalised window, the caller's, then 1 and zeros"
        out = [
            Field(f"{prefix}.x", (r, k, self.columns), kind="scratch", doc=doc),
            Field(f"{prefix}.stem.scaled_x", (r, k, self.x), kind="scratch", doc="x~ over its embedding's RMS"),
            *self.layer.mixer_fields(prefix, rows, backward),
        ]
        if backward:
            shapes = {
                "gram_partial": (stem_gram.parts(backward), self.x * self.x),
                "gram_sum": (self.x * self.x,),
                "dfolded": (self.layer.width, self.x),
                "dwide": (self.d, self.columns),
            }
            out += [Field(f"{prefix}.stem.{key}", shape, kind="scratch") for key, shape in shapes.items()]
        return out

    def forward(self, device: Device, p: Any, act: Any) -> None:
        """x -> res.1. Kept for backward: x with y in front of it, scaled_x, zcbxdt."""
        gram, folded = p["stem.gram"], p["stem.folded"]
        scaled, proj = act["stem.scaled_x"], act[f"{self.layer.name}.zcbxdt"]
        if self.one_launch:
            device.launch(stem_project.KERNEL, act.x, gram, folded, self.d, EPS, int(device.tf32), scaled, proj)
        else:
            device.launch(stem_scale.KERNEL, act.x, gram, self.d, EPS, scaled)
            linear(device, scaled, folded, proj)
        self.layer.mix(device, p, act, act.x)
        linear(device, act.x, p["stem.wide"], act["res.1"])

    def backward(self, device: Device, p: Any, g: Any, act: Any, dres: Any) -> None:
        a, scaled, total = self.layer.name, act["stem.scaled_x"], act["stem.gram_sum"]
        dfolded, dwide, partial = act["stem.dfolded"], act["stem.dwide"], act["stem.gram_partial"]
        linear_backward_weight(device, dres, act.x, dwide)
        self.layer.mix_backward(device, p, g, act, dres)
        # Of the norm: proj is linear in rstd, so log rstd has the gradient row_dot. The last kernel waits for it, so it
        # neither queues behind other parameters' gradients nor lets the product below go first.
        with device.branch("gram", urgent=True):
            device.launch(stem_gram.KERNEL, scaled, act[f"{a}.row_dot"], partial)
            device.launch(column_sum.KERNEL, partial, total)
        device.gemm(rows(act[f"{a}.dzcbxdt"]), rows(scaled), dfolded, ta=True)
        with gradients(device):
            device.gemm(dfolded, p["stem.scaled"], g[f"{a}.in_proj.weight"], tb=True)
        device.join()
        out = g["embed.weight"], g["embed.bias"], g[f"{a}.norm.weight"], g[f"{a}.out_proj.weight"]
        device.launch(stem_weights_bwd.KERNEL, *self._parameters(p), dfolded, dwide, total, *out)

    def flops(self, rows: int) -> int:
        """Of `x` and `folded` in place of embedding and in_proj; see `MixerAll.flops`."""
        n, layer = rows * self.window, self.layer
        products = self.x * (layer.width + self.d + self.x) - layer.width * self.d
        return layer.flops(rows) + 2 * n * products


def make_stem(cfg: NetConfig, n_features: int, layers: list[Any]) -> Embedding | FoldedLayer:
    """Folded where that is less arithmetic, X <= D, and the first layer is not the last one, which is pruned itself."""
    if len(layers) > 1 and stem_weights.stem_columns(n_features) <= cfg.d_model:
        return FoldedLayer(cfg, n_features, layers[0])
    return Embedding(cfg, n_features)
