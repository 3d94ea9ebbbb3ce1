"""Gradient norm and Adam over the arena: a plain float64 loop, torch's golden vectors, and what must not move."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from kernels import adam_arena, grad_norm
from kernels.isv import GROUPS, SIZE, SLOTS
from trainer.device import NumpyDevice

GOLDEN = Path(__file__).parents[1] / "golden" / "adam.npz"
SEGMENTS = ((0, 64, "encoder"), (64, 65, "q"), (65, 200, "policy"), (256, 320, "value"), (320, 384, "aux"))


class Arena:
    """Arrays of one optimiser; floats 200:256 belong to no segment."""

    def __init__(self, dtype=np.float64, size=384, segments=SEGMENTS, seed=0):
        rng = np.random.default_rng(seed)
        self.param, self.target = rng.normal(size=(2, size)).astype(dtype)
        self.m, self.v, self.grad = np.zeros((3, size), dtype)
        self.start, self.stop = (np.array([s[i] for s in segments], np.int32) for i in (0, 1))
        self.group = np.array([GROUPS.index(s[2]) for s in segments], np.int32)
        self.norm, self.norm_parts = np.zeros(1, dtype), np.zeros(grad_norm.PARTS, dtype)
        self.count, self.bad = np.zeros(1, np.int64), np.zeros(1, np.int32)
        self.parts = np.full((len(segments), 3, grad_norm.PARTS), np.nan, dtype)
        self.isv = np.zeros(SIZE, dtype)
        self.isv[SLOTS["tau"]] = 0.05
        for i, name in enumerate(GROUPS):
            self.isv[SLOTS[f"lr_{name}"]] = 1e-3 * (i + 1)

    def step(self, grad, b1=0.9, b2=0.99, eps=1e-8, clip=1.0, decay=0):
        self.grad[:] = grad
        device = NumpyDevice()
        device.launch(grad_norm.KERNEL, self.grad, self.norm_parts, self.norm, self.isv)
        device.launch(
            adam_arena.KERNEL,
            *(self.param, self.grad, self.m, self.v, self.target, self.start, self.stop, self.group),
            *(self.norm, self.count, self.bad, self.parts, self.isv, b1, b2, eps, clip, decay),
        )

    def slot(self, name):
        return self.isv[SLOTS[name]]


def adam_by_loop(param, grads, lr, b1, b2, eps, clip):
    """Kingma and Ba 2015, Algorithm 1, one float at a time, after torch's norm clip."""
    param, m, v = [float(p) for p in param], [0.0] * len(param), [0.0] * len(param)
    for t, grad in enumerate(grads, 1):
        norm = sum(float(g) ** 2 for g in grad) ** 0.5
        scale = min(1.0, clip / (norm + 1e-6))
        for i, g in enumerate(grad):
            m[i] = b1 * m[i] + (1 - b1) * g * scale
            v[i] = b2 * v[i] + (1 - b2) * (g * scale) ** 2
            param[i] -= lr[i] * (m[i] / (1 - b1**t)) / ((v[i] / (1 - b2**t)) ** 0.5 + eps)
    return np.array(param)


def lr_of_floats(size=384):
    lr = np.zeros(size)
    for start, stop, group in SEGMENTS:
        lr[start:stop] = 1e-3 * (GROUPS.index(group) + 1)
    return lr


@settings(deadline=None, max_examples=60)
@given(size=st.sampled_from([1, 2, 63, 255, 256, 257, 511, 513, 1000, 4097]), seed=st.integers(0, 2**16))
def test_norm_equals_numpys_at_every_size(size, seed):
    grad = np.random.default_rng(seed).normal(size=size)
    parts, norm, isv = np.full(grad_norm.PARTS, np.nan), np.zeros(1), np.zeros(SIZE)
    NumpyDevice().launch(grad_norm.KERNEL, grad, parts, norm, isv)
    assert norm[0] == pytest.approx(np.linalg.norm(grad), rel=1e-13) and isv[SLOTS["grad_norm"]] == norm[0]
    assert parts.sum() == pytest.approx((grad**2).sum())


@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_updates_equal_a_plain_loop(clip):
    arena, rng = Arena(), np.random.default_rng(2)
    start = arena.param.copy()
    grads = rng.normal(size=(6, 384)) * np.array([1, 1e-3, 30, 0.1, 1, 5])[:, None]
    for grad in grads:
        arena.step(grad, clip=clip)
    want = adam_by_loop(start, grads, lr_of_floats(), 0.9, 0.99, 1e-8, clip)
    np.testing.assert_allclose(arena.param, want, rtol=1e-12, atol=1e-14)
    assert arena.count[0] == 6 and arena.bad[0] == 0


def test_floats_of_no_segment_stay():
    arena = Arena()
    before = {name: getattr(arena, name)[200:256].copy() for name in ("param", "target", "m", "v")}
    arena.step(np.ones(384))
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(arena, name)[200:256], value)


def test_target_and_signals():
    arena, rng = Arena(), np.random.default_rng(3)
    for _ in range(3):
        before, target = arena.param.copy(), arena.target.copy()
        arena.step(rng.normal(size=384))
        used = lr_of_floats() > 0
        np.testing.assert_allclose(arena.target[used], (target + 0.05 * (arena.param - target))[used], rtol=1e-14)
        change = arena.param - before
        for start, stop, group in SEGMENTS:
            want = np.linalg.norm(change[start:stop]) / np.linalg.norm(arena.param[start:stop])
            assert arena.slot(f"update_rms_{group}") == pytest.approx(want, rel=1e-10), group
        gap = np.linalg.norm((arena.param - arena.target)[used]) / np.linalg.norm(arena.param[used])
        assert arena.slot("target_distance") == pytest.approx(gap, rel=1e-12)


def test_two_segments_of_one_group_are_measured_together():
    arena = Arena(size=30, segments=((0, 10, "q"), (10, 30, "q")))
    before = arena.param.copy()
    arena.step(np.linspace(-1, 1, 30))
    want = np.linalg.norm(arena.param - before) / np.linalg.norm(arena.param)
    assert arena.slot("update_rms_q") == pytest.approx(want, rel=1e-10)
    assert arena.slot("update_rms_encoder") == 0


def test_zero_parameters_do_not_divide_by_zero():
    arena = Arena()
    for name in ("param", "target"):
        getattr(arena, name)[:] = 0
    arena.step(np.zeros(384))
    assert (arena.param == 0).all() and arena.slot("target_distance") == 0 and arena.slot("update_rms_q") == 0


def test_learning_rate_decays_over_updates():
    grads = np.random.default_rng(4).normal(size=(6, 384))
    decayed, steps = Arena(), []
    for grad in grads:
        before = decayed.param.copy()
        decayed.step(grad, decay=4)
        steps.append((decayed.slot("lr_factor"), np.abs(decayed.param - before).max()))
    assert [f for f, _ in steps] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert steps[3][1] > 0 and steps[4][1] == steps[5][1] == 0.0
    constant = Arena()
    constant.step(grads[0])
    assert constant.slot("lr_factor") == 1.0


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_gradient_that_is_not_finite_changes_nothing_and_is_flagged(poison):
    """1e30 is finite, but its square is not in float32: a step of such a gradient would be noise."""
    arena = Arena(np.float32)
    arena.step(np.ones(384))
    names = ("param", "target", "m", "v", "count")
    before = {name: getattr(arena, name).copy() for name in names}
    grad = np.ones(384)
    grad[70] = poison
    arena.step(grad)
    assert arena.bad[0] == 1 and not np.isfinite(arena.slot("grad_norm"))
    for name in names:
        np.testing.assert_array_equal(getattr(arena, name), before[name])
    arena.step(np.ones(384))
    assert arena.bad[0] == 1, "only the host lowers the flag"
    assert arena.count[0] == 2


def test_equals_torch():
    """tests/golden/adam.npz: torch.optim.Adam over gradients of ten orders of magnitude (make_golden_nets.py)."""
    golden = np.load(GOLDEN)
    size = golden["start"].size
    arena = Arena(size=size, segments=((0, size, "encoder"),))
    arena.param[:] = golden["start"]
    arena.isv[SLOTS["lr_encoder"]] = golden["lr"]
    b1, b2 = golden["betas"]
    for grad, want in zip(golden["grads"], golden["params"]):
        arena.step(grad, b1, b2, float(golden["eps"]), clip=1e30)
        np.testing.assert_allclose(arena.param, want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(arena.m, golden["m"], rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(arena.v, golden["v"], rtol=1e-12, atol=1e-300)
