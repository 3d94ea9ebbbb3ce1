"""Linear maps as region code: forward, and under it backward. Weights are [out, in]; activations may have row axes.

Parameter gradients are written, never accumulated, so nobody zeroes them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from kernels import column_sum
from trainer.device.base import Device

BIAS_COLUMNS = 4  # an affine weight is [out, in + 4]: column `in` is the bias, then zeros; rows stay 16-byte aligned


def rows(x: Any) -> Any:
    """[..., C] as a 2-D view [rows, C]."""
    return x.reshape(-1, x.shape[-1])


def gradients(device: Device) -> AbstractContextManager[None]:
    """The branch of the parameter gradients. No later layer needs them, so they fill what the chain of the inputs'
    gradients leaves idle; `Network.backward` joins it."""
    return device.branch("gradients")


def linear(device: Device, x: Any, weight: Any, y: Any, bias: Any = None) -> None:
    """y = x weight^T (+ bias). x [..., I], weight [O, I], bias [O], y [..., O]."""
    device.gemm(rows(x), weight, rows(y), tb=True, bias=bias)


def linear_backward_input(device: Device, dy: Any, weight: Any, dx: Any) -> None:
    """dx = dy weight."""
    device.gemm(rows(dy), weight, rows(dx))


def linear_backward_weight(device: Device, dy: Any, x: Any, dweight: Any) -> None:
    """dweight = dy^T x, summed over all rows; in the branch that `gradients` tells of."""
    with gradients(device):
        device.gemm(rows(dy), rows(x), dweight, ta=True)


def vectors_backward(device: Device, partial: Any, dvectors: Any) -> None:
    """dvectors [V] = sum over the rows of partial [R, V]; in the branch that `gradients` tells of."""
    with gradients(device):
        device.launch(column_sum.KERNEL, partial, dvectors)
