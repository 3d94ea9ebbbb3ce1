"""How far from its float64 reference a CUDA kernel may be, wherever it runs: on a GPU or emulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import Arg
from tests.kernels.registry import Case

EPSILON = float(np.finfo(np.float32).eps)
FLOOR = 4  # units in the last place of an array's largest value: what NumPy's own error may happen to be far below
# Kernels that may leave float64 by their own tolerance (kernels/NAME.py) where it is more than that, and why.
SILU = "SiLU by __expf and a fast division, off by up to 1e-6 of its value (mamba2.cuh)"
LOOSER = {
    "mamba2_last": SILU,
    "mamba2_last_bwd": SILU,
    "mamba2_mixer": SILU,
    "mamba2_mixer_bwd": SILU,
    "per_mass": "a logarithm, an exponential, then rounded to an integer: one unit more or less",
    "per_sample": "powf, which CUDA gives to 4 units in the last place, over the largest of all",
}


def limits(case: Case, arg: Arg, single: np.ndarray, double: np.ndarray) -> np.ndarray:
    """How far from float64 each value may be: twice as far as NumPy's float32 at most, or FLOOR units in the last place
    of the array's largest value if the kernel's tolerance allows them (on the bus, whose slots have nothing in common,
    of each value itself); for a kernel in LOOSER all that its tolerance allows; or what the case allows itself."""
    own, size = np.abs(single - double).max(initial=0), np.abs(double)
    if case.tolerance is not None:
        return np.full_like(size, max(2 * own, case.tolerance * size.max(initial=0)))
    kernel = case.kernel
    atol, rtol, _ = kernel.tolerance
    stated = atol + rtol * size
    units = FLOOR * EPSILON * (size if arg.name == "isv" else size.max(initial=0))
    return np.maximum(2 * own, stated if kernel.name in LOOSER else np.minimum(units, stated))


def check(case: Case, got: Mapping[str, np.ndarray], values: list[Any]) -> None:
    """What a kernel made of `values`, by name, against its reference: integers equal, the rest within its limits."""
    single, double = case.typed(values, np.float32), case.typed(values, np.float64)
    for reference in (single, double):
        case.kernel.reference(*reference)
    for i, arg in case.written():
        ours, want = got[arg.name], double[i].astype(np.float64)
        if case.exact(arg):
            np.testing.assert_array_equal(ours, double[i], err_msg=arg.name)
            continue
        assert np.isfinite(ours).all(), f"{arg.name}: not written, or not finite"
        limit = limits(case, arg, single[i].astype(np.float64), want)
        beyond = np.abs(ours - want) - limit
        at = np.unravel_index(beyond.argmax(), beyond.shape)
        assert beyond[at] <= 0, (
            f"{arg.name}{[int(k) for k in at]}: {ours[at]}, not {want[at]}, is off by more than {limit[at]:.2e}; "
            f"float32 NumPy is off by {np.abs(single[i] - want).max():.2e} at most"
        )
