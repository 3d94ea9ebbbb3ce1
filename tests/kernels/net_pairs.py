"""Forward/backward kernel pairs of the networks, each as one table row, and what every pair must pass.

A pair is run through `NumpyDevice.launch`, so argument tables are checked too. `Pair.outputs` are weighted by random
gradients to a scalar; `Pair.grads` names where the backward kernel leaves the gradient of each input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.spec import REAL, Kernel
from kernels.vectors import place
from trainer.device.base import NumpyDevice

EPS = 1e-5  # of the norms, and the step of central differences
THRESHOLD = 1e-5  # right code stays below 4e-7 in float64; one wrong entry in 2048 gives 5e-5

Arrays = dict[str, np.ndarray]


@dataclass
class Pair:
    forward: Kernel
    backward: Kernel
    inputs: Arrays  # differentiable and constant inputs of the forward kernel, float64
    shapes: dict[str, tuple[int, ...]]  # of every output of both kernels
    seeds: dict[str, str]  # output -> name of its gradient among the backward kernel's inputs
    grads: Callable[[Arrays], Arrays]  # outputs of the backward kernel -> gradient by input
    extra: Arrays  # further inputs of the backward kernel


def run_forward(pair: Pair, real=np.float64) -> Arrays:
    """All arrays of the forward kernel after a launch; outputs start as NaN, inout arrays as a copy of the input."""
    values = {a.name: _value(pair, a, real) for a in pair.forward.args}
    NumpyDevice().launch(pair.forward, *values.values())
    return values


def _value(pair: Pair, arg, real):
    if arg.role == "scalar":
        return EPS if arg.dtype == REAL else 0
    if arg.role == "out":
        return np.full(pair.shapes[arg.name], np.nan, real)
    return (pair.inputs | pair.extra)[arg.name].astype(real)


def run_backward(pair: Pair, kept: Arrays, weights: Arrays, real=np.float64) -> tuple[Arrays, Arrays]:
    """(gradient by input, the kernel's raw outputs) for loss = sum over outputs of output * weight."""
    known = kept | {grad: weights[out] for out, grad in pair.seeds.items()} | pair.extra
    values = {}
    for a in pair.backward.args:
        if a.role == "in":
            values[a.name] = known[a.name].astype(real)
        else:
            values[a.name] = _value(pair, a, real)
    NumpyDevice().launch(pair.backward, *values.values())
    return pair.grads(values), {a.name: values[a.name] for a in pair.backward.args if a.role == "out"}


def output_weights(pair: Pair) -> Arrays:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(run_forward(pair)[name].shape) for name in pair.seeds}


def check_gradients(pair: Pair) -> None:
    """Every differentiable input along five random directions."""
    weights = output_weights(pair)
    grads, _ = run_backward(pair, run_forward(pair), weights)
    rng = np.random.default_rng(8)

    def loss() -> float:
        values = run_forward(pair)
        return float(sum((values[name] * weights[name]).sum() for name in pair.seeds))

    for name, grad in grads.items():
        start = pair.inputs[name].copy()
        assert np.isfinite(grad).all() and np.linalg.norm(grad) > 0, name
        for _ in range(5):
            direction = rng.standard_normal(start.shape)
            direction /= np.linalg.norm(direction)
            pair.inputs[name] = start + EPS * direction
            up = loss()
            pair.inputs[name] = start - EPS * direction
            down = loss()
            pair.inputs[name] = start
            numeric, exact = (up - down) / (2 * EPS), float((grad * direction).sum())
            scale = max(abs(exact), 1e-2 * float(np.linalg.norm(grad)))
            assert abs(numeric - exact) / scale < THRESHOLD, (pair.backward.name, name)


def vectors(partial: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Gradients of vector parameters from the windows' partial rows; the padding between them must be zero."""
    where, size = place(shapes)
    assert partial.shape[1] == size
    total = partial.sum(axis=0)
    covered = np.zeros(size, bool)
    for span in where.values():
        covered[span] = True
    assert (partial[:, ~covered] == 0).all()
    return {name: total[where[name]].reshape(shape) for name, shape in shapes.items()}
