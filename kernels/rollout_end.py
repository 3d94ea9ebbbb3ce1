"""The boundary of two rollouts: latch the KL of the epoch just served, start a new epoch, take over the next T."""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel


def rollout_end(
    isv: np.ndarray, active: np.ndarray, length: np.ndarray, epoch: np.ndarray, position: np.ndarray
) -> None:
    """Runs right after the write that turned the buffers: length[active] is still the T of the epoch just served."""
    isv[SLOTS["rollout_kl"]] = isv[SLOTS["approx_kl"]]
    isv[SLOTS["rollout_kl_len"]] = length[active[0]]
    length[active[0]] = int(isv[SLOTS["rollout_len"]])
    epoch[0] += 1
    position[0] = 0


KERNEL = Kernel(
    "rollout_end",
    (
        Arg("isv", REAL, "inout", str(SIZE), "reads approx_kl, rollout_len; writes rollout_kl, rollout_kl_len"),
        Arg("active", "int64", "in", "1", "buffer being filled"),
        Arg("length", "int32", "inout", "2", "T of each buffer; the active one gets the controller's"),
        Arg("epoch", "int64", "inout", "1", "number of the permutation"),
        Arg("position", "int64", "inout", "1", "batches served of it"),
    ),
    rollout_end,
    launcher=lambda sizes, scalars: ((1,), (1,), 0),
    tolerance=(0.0, 0.0, "copies"),
    constants=cuda_constants(),
)
