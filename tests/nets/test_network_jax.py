"""Outputs and every parameter gradient against JAX in float64, over the plain, unpruned network of `jax_network`."""

import jax
import numpy as np
import pytest

from tests.nets.harness import CONFIGS, build, run
from tests.nets.jax_network import network
from trainer.nets.heads import USED

TOLERANCE = 1e-9
# Compiling takes far longer than the one run of what was compiled.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def relative(got, want) -> float:
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300))


def oracle(t, config):
    """Outputs, and the gradient of sum(out * d_out) by every tensor."""
    params = {e.name: np.array(t.p[e.name]) for e in t.net.layout.entries}
    inputs = [t.windows, *(np.array(t.act[name]) for name in ("private", "h_prev", "ts"))]

    def weighted(params):
        out = network(params, config["headdim"], config["layers"], *inputs)
        return (out[2] * t.act.d_out).sum(), out

    with jax.enable_x64(True):
        grads, outputs = jax.jit(jax.grad(weighted, has_aux=True), compiler_options=QUICK)(params)
        return [np.asarray(o) for o in outputs], {k: np.asarray(v) for k, v in grads.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_and_gradients_tensor_by_tensor(name):
    t = build(CONFIGS[name], rows=4)
    run(t)
    outputs, grads = oracle(t, CONFIGS[name])
    for got, want in zip((t.act.enc, t.act.h, t.act.out), outputs):
        assert want.dtype == np.float64 and relative(got, want) < TOLERANCE
    for entry in t.net.layout.entries:
        assert np.linalg.norm(grads[entry.name]) > 0, f"{entry.name} has no gradient: the check would be empty"
        assert relative(t.g[entry.name], grads[entry.name]) < TOLERANCE, entry.name
    assert (t.g["heads.weight"][USED:] == 0).all()


def test_large_decays_and_steps_stay_finite_and_exact():
    """A of e^5 and steps of 20: decays underflow to zero, where differences of prefix sums would lose everything."""
    config = CONFIGS["two layers, two heads"]
    t = build(config, rows=2)
    for i in range(2):
        t.p[f"layers.{i}.A_log"][...] = [5.0, -3.0]
        t.p[f"layers.{i}.dt_bias"][...] = [20.0, -20.0]
    run(t)
    outputs, grads = oracle(t, config)
    assert relative(t.act.out, outputs[2]) < TOLERANCE
    for entry in t.net.layout.entries:
        assert relative(t.g[entry.name], grads[entry.name]) < TOLERANCE, entry.name
