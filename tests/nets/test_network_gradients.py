"""The hand-written backward pass: finite differences in float64, poisoned scratch, float32 against float64."""

import numpy as np
import pytest

from tests.nets.harness import CONFIGS, build, put_windows, run, run_forward
from trainer.nets.heads import AUX, POLICY, USED, VALUE, Q

EPS = 1e-5  # best step of central differences here
THRESHOLD = 1e-5  # right code stays below 4e-7, one wrong entry in 2048 gives 5e-5


def loss(t) -> float:
    run_forward(t)
    return float((t.act.out * t.act.d_out).sum())


@pytest.mark.parametrize("name", CONFIGS)
def test_each_parameter_along_five_directions(name):
    t = build(CONFIGS[name], rows=2)
    run(t)
    rng = np.random.default_rng(1)
    for entry in t.net.layout.entries:
        p, grad = t.p[entry.name], t.g[entry.name].copy()
        start = p.copy()
        for _ in range(5):
            direction = rng.standard_normal(entry.shape)
            if entry.name == "heads.weight":
                direction[246:] = 0
            if entry.name in ("heads.weight", "cfc.maps.weight", "cfc.backbone.weight"):
                direction[:, -3:] = 0
            direction /= np.linalg.norm(direction)
            p[...] = start + EPS * direction
            up = loss(t)
            p[...] = start - EPS * direction
            down = loss(t)
            p[...] = start
            numeric, exact = (up - down) / (2 * EPS), float((grad * direction).sum())
            scale = max(abs(exact), 1e-2 * np.linalg.norm(grad))
            assert abs(numeric - exact) / scale < THRESHOLD, entry.name


@pytest.mark.parametrize("name", CONFIGS)
def test_second_pass_over_poisoned_scratch_gives_the_same_bits(name):
    """Nothing stale is read and nothing is added to: scratch, outputs and gradients are NaN before each pass."""
    t = build(CONFIGS[name])
    inputs = {key: np.array(t.act[key]) for key in ("private", "h_prev", "ts", "d_out")}
    first = None
    for _ in range(2):
        for array in t.store.arrays.values():
            array.fill(np.nan)
        t.grads.fill(np.nan)
        put_windows(t.net, t.act, t.windows)
        for key, value in inputs.items():
            t.act[key][...] = value
        x = t.act.x[..., t.net.first :].copy()
        run(t)
        result = {e.name: t.g[e.name].copy() for e in t.net.layout.entries} | {"out": t.act.out.copy()}
        assert all(np.isfinite(v).all() for v in result.values())
        np.testing.assert_array_equal(t.act.x[..., t.net.first :], x, err_msg="x is the caller's and was changed")
        for key, value in inputs.items():
            np.testing.assert_array_equal(t.act[key], value, err_msg=f"{key} is the caller's and was changed")
        if first is not None:
            for key, value in first.items():
                np.testing.assert_array_equal(value, result[key], err_msg=key)
        first = result


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_is_as_exact_as_float32_can_be(name):
    """Same rounded inputs: errors below 30 eps sqrt(K), of the tensor's own norm or 1 % of the whole gradient's.

    The floor is for gradients that nearly cancel, like that of D, of which the gated norm divides out a part.
    """
    narrow, wide = build(CONFIGS[name], real=np.float32), build(CONFIGS[name])
    for array, rounded in zip(wide.store.arrays.values(), narrow.store.arrays.values()):
        array[...] = rounded
    wide.params[...] = narrow.params
    run(narrow)
    run(wide)
    limit = 30 * np.finfo(np.float32).eps * np.sqrt(CONFIGS[name]["window"])
    floor = 0.01 * float(np.linalg.norm(np.nan_to_num(wide.grads)))
    for key in ("enc", "h", "out"):
        assert narrow.act[key].dtype == np.float32
        assert _relative(narrow.act[key], wide.act[key]) < limit, key
    for entry in narrow.net.layout.entries:
        assert narrow.g[entry.name].dtype == np.float32
        assert _relative(narrow.g[entry.name], wide.g[entry.name], floor) < limit, entry.name


def _relative(got, want, floor: float = 0.0) -> float:
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), floor))


def test_head_padding_has_no_gradient_and_passes_none_on():
    t = build(CONFIGS["one layer, one head"])
    run(t)
    clean = {e.name: t.g[e.name].copy() for e in t.net.layout.entries}
    t.act.d_out[:, USED:] = 7.0
    run(t)
    assert (t.g["heads.padding"] == 0).all() and (t.act.out[:, USED:] == 0).all()
    for name, value in clean.items():
        np.testing.assert_array_equal(t.g[name], value, err_msg=name)


@pytest.mark.parametrize(("head", "own"), [(Q, "q"), (POLICY, "policy"), (VALUE, "value"), (AUX, "aux")])
def test_a_head_moves_its_own_rows_and_the_encoder(head, own):
    t = build(CONFIGS["one layer, one head"])
    weights = t.act.d_out.copy()
    t.act.d_out.fill(0)
    t.act.d_out[:, head] = weights[:, head]
    run(t)
    for start, stop, group in t.net.layout.segments:
        used = t.grads[start:stop][np.isfinite(t.grads[start:stop])]
        assert (np.linalg.norm(used) > 0) == (group in (own, "encoder")), group


def test_overfits_one_batch():
    """Plain gradient steps on one batch drive the squared error of all used outputs near zero."""
    t = build(CONFIGS["two layers, two heads"], rows=4)
    target = np.random.default_rng(2).standard_normal((4, USED))
    velocity, losses = np.zeros_like(t.params), []
    t.grads.fill(0)
    for _ in range(400):
        run_forward(t)
        t.act.d_out[:, :USED] = t.act.out[:, :USED] - target
        losses.append(float((t.act.d_out**2).sum()))
        t.net.backward(t.device, t.p, t.g, t.act)
        velocity *= 0.9
        velocity -= 5e-3 * t.grads
        t.params += velocity
    assert losses[-1] < 1e-3 * losses[0]
