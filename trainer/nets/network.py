"""The policy network: encoder -> CfC cell -> heads, forward and backward as region code.

    net = Network(cfg.net, n_features)
    store = allocate(device, [*net.weight_fields("online"), *net.fields("joint", rows, backward=rows), ...])
    p, g = net.weights(params, store.ns("online")), net.layout.views(grads)   # once
    net.prepare(device, p)                                                    # whenever params have changed
    net.forward(device, p, store.ns("joint"))
    net.backward(device, p, g, store.ns("joint"))                             # after the losses wrote d_out

Inputs (the caller's): x [R, K, ...], which holds the normalised window from column `first` on, as `gather_windows` puts
it there; private [R, P], h_prev [R, H], ts [R]. Outputs: enc [R, D], h [R, H], out [R, W]; the columns of `out` are
heads.Q, heads.POLICY, heads.VALUE, heads.AUX.
"""

from __future__ import annotations

from typing import Any

from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import ParamLayout
from trainer.nets.cfc import CfCCell
from trainer.nets.encoder import Encoder
from trainer.nets.heads import Heads


class Network:
    def __init__(self, cfg: NetConfig, n_features: int):
        self.cfg = cfg
        self.encoder, self.cell, self.heads = Encoder(cfg, n_features), CfCCell(cfg), Heads(cfg)
        self.layout = ParamLayout([*self.encoder.entries(), *self.cell.entries(), *self.heads.entries()])
        self.encoder.add_blocks(self.layout)
        self.heads.add_blocks(self.layout)

    @property
    def first(self) -> int:
        """Column of `x` in which a window's features begin."""
        return self.encoder.stem.first

    def weight_fields(self, prefix: str) -> list[Field]:
        """Arrays that `prepare` computes from one set of weights."""
        return self.encoder.stem.weight_fields(prefix)

    def weights(self, flat: Any, derived: Any) -> dict[str, Any]:
        """What a pass reads: views of the arena `flat` [size], and those arrays (the namespace of `weight_fields`)."""
        return self.layout.views(flat) | self.encoder.stem.weights(derived)

    def prepare(self, device: Device, p: Any) -> None:
        """Must have run since the weights changed, before a pass over them."""
        self.encoder.stem.prepare(device, p)

    def fields(self, prefix: str, rows: int, backward: int = 0) -> list[Field]:
        """Activations of a pass over `rows` windows under `prefix`, which come first in every array; and what a
        backward pass over the first `backward` of them needs."""
        parts = (self.encoder, self.cell, self.heads)
        return [field for part in parts for field in part.fields(prefix, rows, backward)]

    def encode(self, device: Device, p: Any, act: Any) -> None:
        """x -> enc."""
        self.encoder.forward(device, p, act)

    def head(self, device: Device, p: Any, act: Any) -> None:
        """enc, private, h_prev, ts -> h, out."""
        self.cell.forward(device, p, act)
        self.heads.forward(device, p, act)

    def forward(self, device: Device, p: Any, act: Any) -> None:
        self.encode(device, p, act)
        self.head(device, p, act)

    def backward(self, device: Device, p: Any, g: Any, act: Any) -> None:
        """d_out -> every parameter gradient, written (the caller never zeroes). Needs the forward pass of `act`."""
        self.heads.backward(device, p, g, act)
        self.cell.backward(device, p, g, act)
        self.encoder.backward(device, p, g, act, act.dcat)
        device.join()

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass over `rows` windows (matrix products and convolutions)."""
        return self.encoder.flops(rows) + self.cell.flops(rows) + self.heads.flops(rows)
