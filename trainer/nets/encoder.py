"""The encoder: window [K, F] -> linear -> L x (RMSNorm -> Mamba-2 -> residual) -> RMSNorm of the last row -> [D].

Windows are independent; no state passes between them.
"""

from __future__ import annotations

from typing import Any

from kernels import (
    bias_rmsnorm_bwd,
    encoding_norm,
    encoding_norm_bwd,
    residual_rmsnorm,
    residual_rmsnorm_bwd,
    rmsnorm,
)
from kernels.vectors import padded
from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import Entry, ParamLayout, constant, fan_in
from trainer.nets.layers import linear, linear_backward_weight, vectors_backward
from trainer.nets.mamba2 import EPS, MixerAll, MixerLast


class Encoder:
    def __init__(self, cfg: NetConfig, n_features: int):
        self.d, self.window, self.features, self.depth = cfg.d_model, cfg.window, n_features, cfg.layers
        self.layers: list[MixerAll | MixerLast] = [MixerAll(cfg, i) for i in range(cfg.layers - 1)]
        self.layers.append(MixerLast(cfg, cfg.layers - 1))

    def entries(self) -> list[Entry]:
        out = [
            Entry("embed.weight", (self.d, self.features), fan_in(self.features)),
            Entry("embed.bias", (self.d,), fan_in(self.features)),
        ]
        for layer in self.layers:
            out += [Entry(f"{layer.name}.norm.weight", (self.d,), constant(1.0)), *layer.entries()]
        return [*out, Entry("norm.weight", (self.d,), constant(1.0))]

    def add_blocks(self, layout: ParamLayout) -> None:
        layout.add_vectors("embed.vectors", "embed.bias", "layers.0.norm.weight")
        for layer in self.layers:
            layer.add_blocks(layout)

    def fields(self, prefix: str, rows: int, backward: bool) -> list[Field]:
        r, k, d = rows, self.window, self.d
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.depth):
            kept = k if backward or i == 0 or i + 1 < self.depth else 1  # the last layer reads one row
            shapes |= {f"res.{i}": (r, kept, d), f"n.{i}": (r, k, d), f"rstd.{i}": (r, k)}
            if backward:
                partial = (r, d) if i else (r, 2 * padded(d))
                shapes |= {f"dres.{i}": (r, k, d), f"norm_partial.{i}": partial}
        shapes |= {"res.last": (r, d), "rstd.last": (r,)}
        if backward:
            shapes |= {f"dres.{self.depth}": (r, 1, d), "norm_partial.last": (r, d), "dn": (r, k, d)}
        out = [
            Field(f"{prefix}.x", (r, k, self.features), kind="scratch", doc="normalised window, the caller's"),
            Field(f"{prefix}.enc", (r, d), kind="scratch", doc="encoding of the last row"),
            *(Field(f"{prefix}.{name}", shape, kind="scratch") for name, shape in shapes.items()),
        ]
        for layer in self.layers:
            out += layer.fields(prefix, rows, backward)
        return out

    def forward(self, device: Device, p: Any, act: Any) -> None:
        """x [R, K, F] -> enc [R, D]. Kept for backward: res, rstd, n of each layer, and what the mixers keep."""
        linear(device, act.x, p["embed.weight"], act["res.0"], p["embed.bias"])
        device.launch(rmsnorm.KERNEL, act["res.0"], p["layers.0.norm.weight"], EPS, act["n.0"], act["rstd.0"])
        for i, layer in enumerate(self.layers):
            layer.forward(device, p, act, act[f"n.{i}"])
            base, delta = act[f"res.{i}"], act[f"{layer.name}.delta"]
            if i + 1 < self.depth:
                weight = p[f"layers.{i + 1}.norm.weight"]
                out = act[f"res.{i + 1}"], act[f"n.{i + 1}"], act[f"rstd.{i + 1}"]
                device.launch(residual_rmsnorm.KERNEL, base, delta, weight, EPS, *out)
            else:
                out = act["res.last"], act.enc, act["rstd.last"]
                device.launch(encoding_norm.KERNEL, base, delta, p["norm.weight"], EPS, *out)

    def backward(self, device: Device, p: Any, g: Any, act: Any, dcat: Any) -> None:
        """dcat [R, X]: its first D columns are the encoding's gradient. Writes every gradient of the encoder."""
        dres, partial = act[f"dres.{self.depth}"], act["norm_partial.last"]
        saved = act["res.last"], act["rstd.last"], p["norm.weight"]
        device.launch(encoding_norm_bwd.KERNEL, dcat, *saved, dres, partial)
        vectors_backward(device, partial, g["norm.weight"])
        for i in reversed(range(self.depth)):
            layer = self.layers[i]
            layer.backward(device, p, g, act, act[f"n.{i}"], dres, act.dn)
            kernel, vectors = (
                (residual_rmsnorm_bwd.KERNEL, f"{layer.name}.norm.weight")
                if i
                else (bias_rmsnorm_bwd.KERNEL, "embed.vectors")
            )
            saved = act[f"res.{i}"], act[f"rstd.{i}"], p[f"{layer.name}.norm.weight"]
            below, partial = act[f"dres.{i}"], act[f"norm_partial.{i}"]
            device.launch(kernel, act.dn, dres, *saved, below, partial)
            vectors_backward(device, partial, g[vectors])
            dres = below
        linear_backward_weight(device, dres, act.x, g["embed.weight"])

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass."""
        return 2 * rows * self.window * self.features * self.d + sum(layer.flops(rows) for layer in self.layers)
