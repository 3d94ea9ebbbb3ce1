"""The encoder: window [K, F] -> linear -> L x (RMSNorm -> Mamba-2 -> residual) -> RMSNorm of the last row -> [D].

Windows are independent; no state passes between them. Where the residual stream begins, and what is folded into that,
is the stem's (stem.py); what is here goes from its `res.{depth}` on.
"""

from __future__ import annotations

from typing import Any

from kernels import (
    encoding_norm,
    encoding_norm_bwd,
    residual_rmsnorm,
    residual_rmsnorm_bwd,
    rmsnorm,
    rmsnorm_tail,
    window_tail,
)
from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import Entry, ParamLayout, constant, fan_in
from trainer.nets.layers import vectors_backward
from trainer.nets.mamba2 import EPS, MixerAll, MixerLast
from trainer.nets.stem import make_stem


class Encoder:
    def __init__(self, cfg: NetConfig, n_features: int):
        self.d, self.window, self.features, self.depth = cfg.d_model, cfg.window, n_features, cfg.layers
        self.layers: list[MixerAll | MixerLast] = [MixerAll(cfg, i) for i in range(cfg.layers - 1)]
        self.top = MixerLast(cfg, cfg.layers - 1)
        self.layers.append(self.top)
        self.stem = make_stem(cfg, n_features, self.layers)

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

    def fields(self, prefix: str, rows: int, backward: int = 0) -> list[Field]:
        """Of a pass over `rows` windows, the first `backward` of which a backward pass goes over."""
        r, k, d, lowest = rows, self.window, self.d, self.stem.depth
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(lowest, self.depth):
            kept = k if backward or i == lowest or i + 1 < self.depth else 1  # the last layer reads one row
            shapes |= {f"res.{i}": (r, kept, d), f"n.{i}": (r, k, d), f"rstd.{i}": (r, k)}
        shapes |= {"res.last": (r, d), "rstd.last": (r,), "enc": (r, d)}
        out = self.stem.fields(prefix, rows, backward)
        if backward:
            for i in range(lowest, self.depth):
                partial = self.stem.norm_partial if i == lowest else d
                shapes |= {f"dres.{i}": (backward, k, d), f"norm_partial.{i}": (backward, partial)}
            shapes |= {
                f"dres.{self.depth}": (backward, 1, d),
                "norm_partial.last": (backward, d),
                "dn": (backward, k, d),
            }
        out += [Field(f"{prefix}.{name}", shape, kind="scratch") for name, shape in shapes.items()]
        for layer in self.layers[lowest:]:
            out += layer.fields(prefix, rows, backward)
        return out

    def forward(self, device: Device, p: Any, act: Any) -> None:
        """x -> enc [R, D]. Kept for backward: res, rstd, n of each layer, and what stem and mixers keep."""
        lowest, last = self.stem.depth, self.depth - 1
        self.stem.forward(device, p, act)
        norm = act[f"res.{lowest}"], p[f"layers.{lowest}.norm.weight"], EPS, act[f"n.{lowest}"], act[f"rstd.{lowest}"]
        if lowest == last:
            device.launch(rmsnorm_tail.KERNEL, *norm, *self.top.tails(act))
        else:
            device.launch(rmsnorm.KERNEL, *norm)
        for i in range(lowest, self.depth):
            layer = self.layers[i]
            layer.forward(device, p, act, act[f"n.{i}"])
            base, delta = act[f"res.{i}"], act[f"{layer.name}.delta"]
            if i + 1 < self.depth:
                weight = p[f"layers.{i + 1}.norm.weight"]
                above = act[f"res.{i + 1}"], act[f"n.{i + 1}"], act[f"rstd.{i + 1}"]
                device.launch(residual_rmsnorm.KERNEL, base, delta, weight, EPS, *above)
                if i + 1 == last:
                    device.launch(window_tail.KERNEL, act[f"n.{last}"], *self.top.tails(act))
            else:
                above = act["res.last"], act.enc, act["rstd.last"]
                device.launch(encoding_norm.KERNEL, base, delta, p["norm.weight"], EPS, *above)

    def backward(self, device: Device, p: Any, g: Any, act: Any, dcat: Any) -> None:
        """dcat [R, X]: its first D columns are the encoding's gradient. Writes every gradient of the encoder."""
        dres, partial = act[f"dres.{self.depth}"], act["norm_partial.last"]
        saved = act["res.last"], act["rstd.last"], p["norm.weight"]
        device.launch(encoding_norm_bwd.KERNEL, dcat, *saved, dres, partial)
        vectors_backward(device, partial, g["norm.weight"])
        for i in range(self.depth - 1, self.stem.depth - 1, -1):
            layer = self.layers[i]
            layer.backward(device, p, g, act, act[f"n.{i}"], dres, act.dn)
            own = residual_rmsnorm_bwd.KERNEL, f"{layer.name}.norm.weight"
            kernel, vectors = self.stem.norm_backward if i == self.stem.depth else own
            saved = act[f"res.{i}"], act[f"rstd.{i}"], p[f"{layer.name}.norm.weight"]
            below, partial = act[f"dres.{i}"], act[f"norm_partial.{i}"]
            device.launch(kernel, act.dn, dres, *saved, below, partial)
            vectors_backward(device, partial, g[vectors])
            dres = below
        self.stem.backward(device, p, g, act, dres)

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass."""
        return self.stem.flops(rows) + sum(layer.flops(rows) for layer in self.layers[self.stem.depth :])
