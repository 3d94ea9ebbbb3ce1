"""The four heads as one matrix [W, H + 4]: Q (C51 logits), policy, value, aux direction, then padding rows of zeros.

Column H is the bias, the three after it are zero. Rows are outputs, so each head is one contiguous run of the arena and
a learning-rate group of its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.heads import N_ACTIONS, N_ATOMS
from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import Entry, ParamLayout
from trainer.nets.layers import BIAS_COLUMNS, gradients, linear, linear_backward_input, linear_backward_weight

N_AUX = 3  # down, flat, up
HOLD = 2  # the action whose logit starts with a bias
WIDTH = 256  # W: columns of the output, padded for the GEMM
Q = slice(0, N_ACTIONS * N_ATOMS)  # a * Z + z
POLICY = slice(Q.stop, Q.stop + N_ACTIONS)
VALUE = slice(POLICY.stop, POLICY.stop + 1)
AUX = slice(VALUE.stop, VALUE.stop + N_AUX)
USED = AUX.stop

# Bound of the start weights times sqrt(H): near-uniform atoms and actions, small first values and directions.
SCALES = {"q": (Q, 0.01), "policy": (POLICY, 0.01), "value": (VALUE, 0.1), "aux": (AUX, 0.1)}


class Heads:
    def __init__(self, cfg: NetConfig):
        self.hidden, self.hold_bias = cfg.hidden, cfg.hold_bias

    def entries(self) -> list[Entry]:
        groups = tuple((rows.stop - rows.start, group) for group, (rows, _) in SCALES.items())
        padding = ((WIDTH - USED, groups[-1][1]),)
        shape = (WIDTH, self.hidden + BIAS_COLUMNS)
        return [Entry("heads.weight", shape, self._start, groups[0][1], groups + padding)]

    def _start(self, u: np.ndarray) -> np.ndarray:
        weight = np.zeros_like(u)
        for rows, scale in SCALES.values():
            weight[rows, : self.hidden] = (2 * u[rows, : self.hidden] - 1) * (scale / math.sqrt(self.hidden))
        weight[POLICY.start + HOLD, self.hidden] = self.hold_bias
        return weight

    def add_blocks(self, layout: ParamLayout) -> None:
        layout.add_rows("heads.padding", "heads.weight", USED, WIDTH)

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        out = [Field(f"{prefix}.out", (rows, WIDTH), kind="scratch", doc="q | policy | value | aux | padding")]
        if backward:
            doc = "gradient of out, written by the losses; columns 246: stay zero"
            out.append(Field(f"{prefix}.d_out", (backward, WIDTH), kind="scratch", doc=doc))
        return out

    def forward(self, device: Device, p: Any, act: Any) -> None:
        """h_head [R, H + 4] -> out [R, W]."""
        linear(device, act.h_head, p["heads.weight"], act.out)

    def backward(self, device: Device, p: Any, g: Any, act: Any) -> None:
        """d_out [R, W] -> dh_head [R, H + 4] and the weight's gradient, zero in the padding rows whatever d_out has."""
        linear_backward_weight(device, act.d_out, act.h_head, g["heads.weight"])
        with gradients(device):
            device.zero(g["heads.padding"])
        linear_backward_input(device, act.d_out, p["heads.weight"], act.dh_head)

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass."""
        return 2 * rows * WIDTH * self.hidden
