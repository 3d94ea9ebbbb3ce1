"""foxhunt's parameter arena <-> the peers' tensors: the arena's padding and bias columns taken away, and put back."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.isv import GROUPS
from trainer.nets.arena import ParamLayout
from trainer.nets.heads import SCALES
from trainer.nets.layers import BIAS_COLUMNS

HEADS = {name: rows for name, (rows, _) in SCALES.items()}  # q, policy, value, aux -> rows of the arena's matrix
AFFINE = ("cfc.backbone", "cfc.maps")


def split(layout: ParamLayout, flat: np.ndarray) -> dict[str, np.ndarray]:
    """Tensors by name, learning-rate group by group; an affine weight [out, in + 4] becomes weight and bias."""
    views = layout.views(flat)
    out: dict[str, np.ndarray] = {}
    for entry in layout.entries:
        name, tensor = entry.name.removesuffix(".weight"), views[entry.name]
        if name == "heads":
            for head, rows in HEADS.items():
                out |= _affine(f"heads.{head}", tensor[rows])
        elif name in AFFINE:
            out |= _affine(name, tensor)
        else:
            out[entry.name] = np.array(tensor)
    return out


def join(layout: ParamLayout, tensors: dict[str, Any]) -> np.ndarray:
    """The arena [S] of tensors named as `split` does; padding is zero."""
    flat = np.zeros(layout.size, np.float32)
    views = layout.views(flat)
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        head = module.removeprefix("heads.")
        if module in AFFINE or head in HEADS:
            whole = views["heads.weight"][HEADS[head]] if head in HEADS else views[f"{module}.weight"]
            into = whole[:, :-BIAS_COLUMNS] if kind == "weight" else whole[:, -BIAS_COLUMNS]
        else:
            into = views[name]
        into[...] = tensor
    return flat


def group_of(name: str) -> int:
    """Number of a tensor's learning-rate group in GROUPS."""
    head = name.split(".")[1]
    return GROUPS.index(head) if name.startswith("heads.") else GROUPS.index("encoder")


def _affine(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    weight, bias = tensor[:, :-BIAS_COLUMNS], tensor[:, -BIAS_COLUMNS]
    return {f"{name}.weight": np.ascontiguousarray(weight), f"{name}.bias": np.ascontiguousarray(bias)}
