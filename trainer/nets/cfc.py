"""The closed-form continuous-time cell (CfC; Hasani et al. 2022) in ncps' default mode, one backbone layer.

h' = f1 (1 - s) + s f2 with v = 1.7159 tanh(0.666 (W [enc, private, h_prev] + b)), f = tanh(maps of v),
s = sigmoid(a ts + b). The four maps f1, f2, a, b are one GEMM. No gradient goes to h_prev, ts or the private state.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels import cfc_gate, cfc_gate_bwd, cfc_input, lecun_tanh, lecun_tanh_bwd
from trainer.config import N_PRIVATE, NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import Entry, Init
from trainer.nets.layers import BIAS_COLUMNS, linear, linear_backward_input, linear_backward_weight


def affine_xavier(inputs: int, outputs: int) -> Init:
    """Glorot uniform for one map of `outputs` rows, the bias column zero (Glorot and Bengio 2010, eq. 16; as ncps)."""
    bound = math.sqrt(6 / (inputs + outputs))

    def start(u: np.ndarray) -> np.ndarray:
        weight = (2 * u - 1) * bound
        weight[:, inputs:] = 0
        return weight

    return start


class CfCCell:
    def __init__(self, cfg: NetConfig):
        self.d, self.hidden, self.units = cfg.d_model, cfg.hidden, cfg.backbone
        self.inputs = cfg.d_model + N_PRIVATE + cfg.hidden

    def entries(self) -> list[Entry]:
        backbone, maps = (self.units, self.inputs + BIAS_COLUMNS), (4 * self.hidden, self.units + BIAS_COLUMNS)
        return [
            Entry("cfc.backbone.weight", backbone, affine_xavier(self.inputs, self.units)),
            Entry("cfc.maps.weight", maps, affine_xavier(self.units, self.hidden)),
        ]

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        r, h, u = rows, self.hidden, self.units
        shapes: dict[str, tuple[int, ...]] = {
            "private": (r, N_PRIVATE),
            "h_prev": (r, h),
            "ts": (r,),
            "cat": (r, self.inputs + BIAS_COLUMNS),
            "units": (r, u),
            "v": (r, u + BIAS_COLUMNS),
            "maps": (r, 4 * h),
            "gates": (r, 3 * h),
            "h": (r, h),
            "h_head": (r, h + BIAS_COLUMNS),
        }
        if backward:
            r = backward
            shapes |= {
                "dh_head": (r, h + BIAS_COLUMNS),
                "dmaps": (r, 4 * h),
                "dv": (r, u + BIAS_COLUMNS),
                "dunits": (r, u),
                "dcat": (r, self.inputs + BIAS_COLUMNS),
            }
        return [Field(f"{prefix}.{name}", shape, kind="scratch") for name, shape in shapes.items()]

    def forward(self, device: Device, p: Any, act: Any) -> None:
        """enc, private, h_prev, ts -> h [R, H] and h_head [R, H + 4]. Kept for backward: cat, v, gates."""
        device.launch(cfc_input.KERNEL, act.enc, act.private, act.h_prev, act.cat)
        linear(device, act.cat, p["cfc.backbone.weight"], act.units)
        device.launch(lecun_tanh.KERNEL, act.units, act.v)
        linear(device, act.v, p["cfc.maps.weight"], act.maps)
        device.launch(cfc_gate.KERNEL, act.maps, act.ts, act.gates, act.h, act.h_head)

    def backward(self, device: Device, p: Any, g: Any, act: Any) -> None:
        """dh_head [R, H + 4] -> dcat [R, X] and the cell's gradients."""
        device.launch(cfc_gate_bwd.KERNEL, act.dh_head, act.gates, act.ts, act.dmaps)
        linear_backward_weight(device, act.dmaps, act.v, g["cfc.maps.weight"])
        linear_backward_input(device, act.dmaps, p["cfc.maps.weight"], act.dv)
        device.launch(lecun_tanh_bwd.KERNEL, act.dv, act.v, act.dunits)
        linear_backward_weight(device, act.dunits, act.cat, g["cfc.backbone.weight"])
        linear_backward_input(device, act.dunits, p["cfc.backbone.weight"], act.dcat)

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass."""
        return 2 * rows * (self.units * self.inputs + 4 * self.hidden * self.units)
