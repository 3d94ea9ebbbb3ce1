"""Linear maps as region code: forward, and under it backward. Weights are [out, in]; activations may have row axes.

Parameter gradients are written, never accumulated, so nobody zeroes them.
"""

from __future__ import annotations

from typing import Any

from trainer.device.base import Device

BIAS_COLUMNS = 4  # an affine weight is [out, in + 4]: column `in` is the bias, then zeros; rows stay 16-byte aligned


def rows(x: Any) -> Any:
    """[..., C] as a 2-D view [rows, C]."""
    return x.reshape(-1, x.shape[-1])


def linear(device: Device, x: Any, weight: Any, y: Any) -> None:
    """y = x weight^T. x [..., I], weight [O, I], y [..., O]."""
    device.gemm(rows(x), weight, rows(y), tb=True)


def linear_backward_input(device: Device, dy: Any, weight: Any, dx: Any, beta: float = 0.0) -> None:
    """dx = dy weight (+ dx when beta is 1)."""
    device.gemm(rows(dy), weight, rows(dx), beta=beta)


def linear_backward_weight(device: Device, dy: Any, x: Any, dweight: Any) -> None:
    """dweight = dy^T x, summed over all rows."""
    device.gemm(rows(dy), rows(x), dweight, ta=True)
