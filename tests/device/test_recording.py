"""The recording device catches every planted fault that a CUDA capture would freeze or refuse."""

import numpy as np
import pytest

from kernels.spec import Arg, Kernel
from trainer.device.base import NumpyDevice
from trainer.device.fields import Field, allocate
from trainer.device.recording import RecordingDevice, RecordingRefused

STEPS = 23  # coprime to every cadence below: an even count hid a frozen branch whose end state was right

FIELDS = [
    Field("s.w", (4,), init=np.arange(1.0, 5.0)),
    Field("s.v", (4,)),
    Field("s.lr", (1,), init=0.1),
    Field("s.ring", (8, 4)),
    Field("s.cursor", (1,), "int64"),
]


def _push(w, cursor, ring):
    ring[cursor[0] % 8] = w
    cursor += 1


PUSH = Kernel(
    "push",
    (Arg("w", "real", "in", "n"), Arg("cursor", "int64", "inout", "1"), Arg("ring", "real", "out", "8,n")),
    _push,
)


class Toy:
    """A step of a ring buffer and a decaying weight, with one place to plant a fault."""

    def __init__(self, device, fault="none"):
        self.device, self.fault = device, fault
        self.store = allocate(device, FIELDS, np.float64)
        self.s, self.count, self.lr = self.store.ns("s"), 0, 0.1
        self.a, self.b = self.s.w, self.s.v
        self.region = device.region(self.body, "toy")

    def body(self):
        s, f = self.s, self.fault
        np.multiply(s.w, 0.9, out=s.v)
        if f == "python learning rate":
            np.subtract(s.w, self.lr, out=s.w)
        else:
            np.subtract(s.w, s.lr, out=s.w)
        if f == "python cursor":
            self.device.copy(s.ring[self.count % 8], s.w)
        else:
            self.device.launch(PUSH, s.w, s.cursor, s.ring)
        if f == "branch" and self.count % 2:
            np.add(s.w, 1.0, out=s.w)
        if f == "swap":
            self.a, self.b = self.b, self.a
            np.add(self.a, 1.0, out=self.b)
        if f == "temporary":
            self.a = s.w * 1.0
        if f == "where":
            np.where(s.w > 0, s.w, 0)
        if f == "mask":
            s.w[s.w > 0]
        if f == "float":
            float(s.w[0])
        if f == "fancy":
            s.ring[np.array([0, 1])]
        if f == "if":
            bool(s.w[0])

    def step(self):
        self.s.lr[...] = 0.1 / (1 + self.count)
        self.lr = 0.1 / (1 + self.count)
        self.region()
        self.count += 1
        return {n: np.array(a, copy=True) for n, a in self.store.items()}


def _first_difference(fault):
    eager, recorded = Toy(NumpyDevice(), fault), Toy(RecordingDevice(), fault)
    for step in range(STEPS):
        a, b = eager.step(), recorded.step()
        if any(a[n].tobytes() != b[n].tobytes() for n in a):
            return step
    return None


def test_a_clean_region_is_bit_equal_at_every_step():
    assert _first_difference("none") is None


@pytest.mark.parametrize("fault", ["python learning rate", "python cursor", "branch", "swap"])
def test_frozen_host_decisions_differ(fault):
    assert _first_difference(fault) is not None


@pytest.mark.parametrize("fault", ["temporary", "where", "mask", "float", "fancy", "if"])
def test_what_a_capture_refuses_is_refused(fault):
    with pytest.raises(RecordingRefused, match="inside a region"):
        _first_difference(fault)


def test_a_failing_body_leaves_no_open_recording():
    device = RecordingDevice()
    toy = Toy(device)
    for _ in range(2):
        toy.step()
    toy.body = toy.region.body = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        toy.region()
    assert float(toy.s.w[0]) == toy.s.w.item(0)


def test_launch_refuses_views_types_and_shapes():
    device = NumpyDevice()
    ring = np.zeros((8, 4))
    good = (np.zeros(4), np.zeros(1, np.int64), ring)
    device.launch(PUSH, *good)
    for bad, words in [
        ((np.zeros(8)[::2], good[1], ring), "C-contiguous"),
        ((np.zeros(4, np.float32), good[1], ring), "float64"),
        ((np.zeros(5), good[1], ring), "n=5"),
        ((good[0], np.zeros(1, np.int32), ring), "expected int64"),
        ((good[0], 3, ring), "must be an array"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            device.launch(PUSH, *bad)


def test_products_and_copies_refuse_views():
    device, a, out = NumpyDevice(), np.ones((4, 4)), np.empty((4, 4))
    device.gemm(a[:2], a, out[:2])  # rows are whole
    for values in ((a[:, ::2], a[:2], out), (a, a.T[:, :4], out), (a, a, np.empty((4, 8))[:, ::2])):
        with pytest.raises(ValueError, match="C-contiguous"):
            device.gemm(*values)
    with pytest.raises(ValueError, match="C-contiguous"):
        device.copy(out[:, 0], a[:, 0])
