"""New raw priorities of the transitions just learnt from (Schaul et al. 2016, algorithm 1, line 12)."""

from __future__ import annotations

import numpy as np

from kernels.spec import REAL, Arg, Kernel, one_block


def per_update(slots: np.ndarray, loss: np.ndarray, priority: np.ndarray, max_priority: np.ndarray) -> None:
    """priority[slots] = max(loss, 0). A slot drawn twice gets the larger loss, whatever the order of the threads.

    fmax passes over a NaN: the run is about to be stopped for it, and replay stays usable.
    """
    priority[slots] = 0
    np.fmax.at(priority, slots, loss)
    max_priority[0] = np.fmax(max_priority[0], np.fmax.reduce(loss))


KERNEL = Kernel(
    "per_update",
    (
        Arg("slots", "int32", "in", "M", "slots drawn by per_sample"),
        Arg("loss", REAL, "in", "M", "cross entropy of each, nats"),
        Arg("priority", REAL, "inout", "C", "raw priority"),
        Arg("max_priority", REAL, "inout", "1", "largest raw priority so far"),
    ),
    per_update,
    launcher=one_block,
    tolerance=(0.0, 0.0, "maxima"),
)
