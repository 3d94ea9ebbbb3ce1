"""The optimiser as region code: fields, recording, and that losses, norm and Adam together fit one batch."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernels.isv import GROUPS, SIZE, SLOTS
from trainer.config import LearnConfig
from trainer.device import Field, NumpyDevice, allocate
from trainer.device.recording import RecordingDevice
from trainer.learn.optimizer import optimizer_fields, optimizer_step
from trainer.nets.losses import act, acting_fields, q_loss, rollout_loss

A, W, M, INPUTS = 11, 256, 32, 12
SEGMENTS = [(0, 231, "q"), (231, 242, "policy"), (242, 243, "value"), (243, 246, "aux")]  # rows of the linear head


class LinearHead:
    """`out` = x @ weight.T with a fixed random batch: the smallest thing that losses and optimiser can train."""

    def __init__(self, device, real=np.float32, **settings):
        rng = np.random.default_rng(0)
        self.device = device
        self.cfg = LearnConfig(**({"batch": M, "grad_clip": 10.0, "lr": 0.02} | settings))
        weight = rng.normal(size=(W, INPUTS)) * 0.1
        weight[246:] = 0
        self.fields = [
            *optimizer_fields(weight.ravel(), [(a * INPUTS, b * INPUTS, g) for a, b, g in SEGMENTS]),
            *acting_fields("acting", 2 * M),
            Field("isv", (SIZE,)),
            Field("step", (1,), "int64"),
            Field("priority", (M,)),
            Field("x", (2 * M, INPUTS), kind="data", init=rng.normal(size=(2 * M, INPUTS))),
            Field("all_mask", (2 * M, A), "uint8", "data", 1),
            *(Field(f"net.{n}", (2 * M, W), kind="scratch", init=np.nan) for n in ("out", "d_out")),
            *(Field(f"net.next_{n}", (M, W), kind="scratch", init=np.nan) for n in ("online", "target")),
            Field("sample.action", (M,), "int32", "data", rng.integers(0, A, M)),
            Field("sample.next_mask", (M, A), "uint8", "data", 1),
            Field("sample.rewards", (M, 3), kind="data", init=rng.normal(size=(M, 3)) * 10),
            Field("sample.n_used", (M,), "int32", "data", 3),
            Field("sample.terminal", (M,), "uint8", "data", 1),
            Field("sample.is_weight", (M,), kind="data", init=1),
            Field("served.action", (M,), "int32", "data", rng.integers(0, A, M)),
            Field("served.log_mu", (M,), kind="data", init=-np.log(A)),
            Field("served.advantage", (M,), kind="data", init=rng.normal(size=M)),
            Field("served.returns", (M,), kind="data", init=rng.normal(size=M) * 2),
            Field("served.value", (M,), kind="data", init=0),
            Field("served.mask", (M, A), "uint8", "data", 1),
            Field("served.valid", (M,), "int8", "data", 1),
            Field("served.aux_label", (M,), "int8", "data", rng.integers(-1, 3, M)),
        ]
        self.store = allocate(device, self.fields, real)
        for name, value in {"gamma": 0.9, "reward_scale": 0.2, "ppo_clip": 0.2, "tau": 0.05}.items():
            self.store["isv"][SLOTS[name]] = value
        for group in GROUPS:
            self.store["isv"][SLOTS[f"lr_{group}"]] = self.cfg.lr

    def step(self):
        s, d = self.store, self.device
        opt, net = s.ns("opt"), s.ns("net")
        weight, target, grad = (a.reshape(W, INPUTS) for a in (opt.param, opt.target, opt.grad))
        d.gemm(s["x"], weight, net.out, tb=True)
        d.gemm(s["x"][:M], weight, net.next_online, tb=True)
        d.gemm(s["x"][:M], target, net.next_target, tb=True)
        act(d, self.cfg, net.out, s["all_mask"], s["step"], s.ns("acting"))
        q_loss(d, self.cfg, net, net.next_online, net.next_target, s.ns("sample"), s["priority"], s["isv"])
        rollout_loss(d, self.cfg, net, s.ns("served"), s["isv"])
        d.gemm(net.d_out, s["x"], grad, ta=True)
        optimizer_step(d, self.cfg, self.cfg.lr_decay_steps, opt, s["isv"])

    def slot(self, name):
        return float(self.store["isv"][SLOTS[name]])


def test_one_batch_is_fitted():
    """Overfitting one batch: every loss falls far below its start, and the target follows."""
    head = LinearHead(NumpyDevice(), value_clip=100.0)
    head.step()
    losses = ("l_q", "l_pi", "l_v", "l_aux")
    first = {name: head.slot(name) for name in losses}
    for _ in range(400):
        head.step()
    last = {name: head.slot(name) for name in losses}
    assert last["l_q"] < 0.6 * first["l_q"], (first, last)
    assert last["l_pi"] < first["l_pi"] - 0.05
    assert last["l_v"] < 0.75 * first["l_v"]  # 32 random returns on 12 inputs: a linear head leaves a part
    assert last["l_aux"] < 0.85 * first["l_aux"]
    assert head.store["opt.count"][0] == 401 and head.store["opt.bad"][0] == 0
    assert 0 < head.slot("target_distance") < 0.1


def test_least_squares_is_reached():
    """The value loss alone has a known minimum: NumPy's least squares."""
    head = LinearHead(
        NumpyDevice(), np.float64, weight_q=0, weight_policy=0, weight_aux=0, value_clip=100.0, lr_decay_steps=800
    )
    for _ in range(800):
        head.step()
    x, returns = head.store["x"][M:], head.store["served.returns"]
    best = np.linalg.lstsq(x, returns, rcond=None)[0]
    np.testing.assert_allclose(head.store["opt.param"].reshape(W, INPUTS)[242], best, atol=1e-4)


def test_padding_rows_of_the_head_stay_zero():
    head = LinearHead(NumpyDevice())
    for _ in range(3):
        head.step()
    assert (head.store["opt.grad"].reshape(W, INPUTS)[246:] == 0).all()
    assert (head.store["opt.param"].reshape(W, INPUTS)[246:] == 0).all()


def test_recorded_equals_eager_at_every_step():
    """23 steps; a host decision inside the region would differ from the second replay on."""
    eager, taped = LinearHead(NumpyDevice(), lr_decay_steps=15), LinearHead(RecordingDevice(), lr_decay_steps=15)
    regions = [h.device.region(h.step, "step") for h in (eager, taped)]
    for step in range(23):
        for region in regions:
            region()
        for name, array in eager.store.items():
            assert array.tobytes() == np.asarray(taped.store[name]).tobytes(), f"{name} differs at step {step}"
    assert taped.slot("lr_factor") == 0.0


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
def test_one_poisoned_gradient_is_left_out():
    head = LinearHead(NumpyDevice())
    head.step()
    before = head.store["opt.param"].copy()
    head.store["served.returns"][3] = np.inf
    head.step()
    assert head.store["opt.bad"][0] == 1
    np.testing.assert_array_equal(head.store["opt.param"], before)


def test_fields_start_with_a_full_copy_as_target():
    fields = {f.name: f for f in optimizer_fields(np.arange(6.0), [(0, 4, "encoder"), (4, 6, "aux")])}
    store = allocate(NumpyDevice(), fields.values())
    np.testing.assert_array_equal(store["opt.target"], store["opt.param"])
    assert store["opt.target"] is not store["opt.param"]
    assert store["opt.group"].tolist() == [GROUPS.index("encoder"), GROUPS.index("aux")]
    assert {n for n, f in fields.items() if f.kind == "state"} == {
        *("opt.param", "opt.target", "opt.m", "opt.v", "opt.count", "opt.bad")
    }


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "no segments"),
        ([(0, 9, "q")], "segment 0:9 of q in an arena of 6"),
        ([(0, 4, "q"), (3, 6, "aux")], "segment 3:6 of aux in an arena of 6, after 4"),
        ([(0, 6, "body")], "body"),
    ],
)
def test_segments_that_make_no_sense(segments, message):
    with pytest.raises(AssertionError, match=message):
        optimizer_fields(np.zeros(6), segments)


def test_the_two_losses_write_every_element_of_the_joint_gradient():
    head = LinearHead(NumpyDevice())
    s, joint = head.store, SimpleNamespace(out=head.store["net.out"], d_out=head.store["net.d_out"])
    s["net.out"][:] = 0.0
    for name in ("net.next_online", "net.next_target"):
        s[name][:] = 0.0
    q_loss(
        head.device,
        head.cfg,
        joint,
        s["net.next_online"],
        s["net.next_target"],
        s.ns("sample"),
        s["priority"],
        s["isv"],
    )
    assert np.isnan(s["net.d_out"][M:]).all() and np.isfinite(s["net.d_out"][:M]).all()
    rollout_loss(head.device, head.cfg, joint, s.ns("served"), s["isv"])
    assert np.isfinite(s["net.d_out"]).all()
