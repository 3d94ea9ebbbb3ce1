"""One optimiser step over the whole arena: clip by the global norm, Adam, Polyak target, and what the controllers read.

Kingma and Ba 2015, Algorithm 1, with epsilon outside the corrected root (as torch.optim.Adam); the clip is that of
torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

import numpy as np

from kernels.grad_norm import MIN_RUN, PARTS, sum_of_squares
from kernels.isv import GROUPS, SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel

LR, UPDATE_RMS = SLOTS[f"lr_{GROUPS[0]}"], SLOTS[f"update_rms_{GROUPS[0]}"]  # one slot a group from here on
CHANGE, PARAM, GAP = range(3)  # the squared sums of a segment: change, parameters, parameters - target


def _update(
    param: np.ndarray,
    grad: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    scale: float,
    lr: float,
    b1: float,
    b2: float,
    adam_eps: float,
    t: int,
) -> np.ndarray:
    """Adam on one segment, in place; returns the change [stop - start]. `t` counts from 1."""
    work = grad * scale
    m *= b1
    m += (1 - b1) * work
    work *= work
    work *= 1 - b2
    v *= b2
    v += work
    np.sqrt(v, out=work)
    work *= (1 - b2**t) ** -0.5
    work += adam_eps
    np.divide(m, work, out=work)
    work *= -lr / (1 - b1**t)
    param += work
    return work


def adam_arena(
    param: np.ndarray,
    grad: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    target: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    group: np.ndarray,
    norm: np.ndarray,
    count: np.ndarray,
    bad: np.ndarray,
    parts: np.ndarray,
    isv: np.ndarray,
    b1: float,
    b2: float,
    adam_eps: float,
    grad_clip: float,
    lr_decay_steps: int,
) -> None:
    """Updates every segment; a norm that is not finite raises `bad` and changes nothing else."""
    if not np.isfinite(norm[0]):
        bad[0] = 1
        return
    done = int(count[0])
    factor = max(0.0, 1 - done / lr_decay_steps) if lr_decay_steps else 1.0
    scale = min(1.0, grad_clip / (float(norm[0]) + 1e-6))
    tau = isv[SLOTS["tau"]]
    sums = np.zeros((len(GROUPS), 3), param.dtype)
    for i, (a, b, g) in enumerate(zip(start.tolist(), stop.tolist(), group.tolist())):
        p, q = param[a:b], target[a:b]
        lr = float(isv[LR + g]) * factor
        change = _update(p, grad[a:b], m[a:b], v[a:b], scale, lr, b1, b2, adam_eps, done + 1)
        q += tau * (p - q)
        for k, x in ((CHANGE, change), (PARAM, p), (GAP, p - q)):
            sums[g, k] += sum_of_squares(x, parts[i, k])
    count[0] = done + 1

    sums = np.sqrt(sums, out=sums)
    tiny = np.finfo(param.dtype).tiny
    isv[UPDATE_RMS : UPDATE_RMS + len(GROUPS)] = sums[:, CHANGE] / np.maximum(sums[:, PARAM], tiny)
    length, gap = (np.sqrt((sums[:, k] ** 2).sum()) for k in (PARAM, GAP))
    isv[SLOTS["target_distance"]] = gap / max(length, tiny)
    isv[SLOTS["lr_factor"]] = factor


KERNEL = Kernel(
    "adam_arena",
    (
        Arg("param", REAL, "inout", "S", "online network"),
        Arg("grad", REAL, "in", "S", "gradient, not clipped"),
        Arg("m", REAL, "inout", "S", "first moment"),
        Arg("v", REAL, "inout", "S", "second moment"),
        Arg("target", REAL, "inout", "S", "target network: += tau (param - target), after the update"),
        Arg("start", "int32", "in", "SEG", "segments of the arena: first float"),
        Arg("stop", "int32", "in", "SEG", "one past the last; what no segment holds is left alone"),
        Arg("group", "int32", "in", "SEG", "learning-rate group, index into isv.GROUPS"),
        Arg("norm", REAL, "in", "1", "global norm of grad"),
        Arg("count", "int64", "inout", "1", "updates done; advanced here"),
        Arg("bad", "int32", "inout", "1", "raised to 1 when norm is not finite; the host reads and lowers it"),
        Arg(
            "parts",
            REAL,
            "inout",
            f"SEG,3,{PARTS}",
            "first-level sums of change^2, param^2, (param - target)^2; kept when norm is not finite",
        ),
        Arg(
            "isv",
            REAL,
            "inout",
            str(SIZE),
            "reads tau, lr_GROUP; writes, all after the update: lr_factor (1 - count / lr_decay_steps, at least 0), "
            "update_rms_GROUP (RMS of the change / RMS of the parameters), target_distance "
            "(norm(param - target) / norm(param))",
        ),
        Arg("b1", REAL, "scalar", doc="decay of the first moment"),
        Arg("b2", REAL, "scalar", doc="decay of the second moment"),
        Arg("adam_eps", REAL, "scalar"),
        Arg("grad_clip", REAL, "scalar", doc="largest global norm that passes unscaled"),
        Arg("lr_decay_steps", "int64", "scalar", doc="updates until the learning rate is 0; 0: no decay"),
    ),
    adam_arena,
    launcher=lambda sizes, scalars: ((PARTS,), (512,), 0),
    tolerance=(1e-7, 1e-5, "float32 square root and division; moments of the same values"),
    constants=cuda_constants() | {"PARTS": PARTS, "MIN_RUN": MIN_RUN, "N_GROUPS": len(GROUPS)},
)
