"""The policy network: encoder -> CfC cell -> heads, forward and backward as region code.

    net = Network(cfg.net, n_features)
    store = allocate(device, [*net.fields("joint", rows, backward=True), ...])
    p, g = net.layout.views(params), net.layout.views(grads)      # once
    net.forward(device, p, store.ns("joint"))
    net.backward(device, p, g, store.ns("joint"))                 # after the losses wrote d_out

Inputs (the caller's): x [R, K, F] normalised, private [R, P], h_prev [R, H], ts [R]. Outputs: enc [R, D], h [R, H],
out [R, W]; the columns of `out` are heads.Q, heads.POLICY, heads.VALUE, heads.AUX.
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

    def fields(self, prefix: str, rows: int, backward: bool) -> list[Field]:
        """Activations of a pass over `rows` windows under `prefix`; with `backward` also what that pass needs."""
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
