"""The twelve controllers as one launch and as twelve: nodes of the captured graph, and the same bus."""

import numpy as np
import pytest

from kernels.controllers import KERNEL, PERIOD, TABLE
from kernels.isv import OUTPUTS, SLOTS, STATE_PER_CONTROLLER
from tests.gpu.marks import NEEDS_GPU
from tests.kernels.cases_learn import control
from trainer.device import open_device

CALLS = 6  # of which the fourth is a move, replayed where there are graphs
FIRST = PERIOD - 4  # steps done before the first call
CUDA = pytest.param("cuda", marks=NEEDS_GPU)


def own_slots(i):
    """Where controller i writes: its output and its state."""
    first = SLOTS[f"state_{OUTPUTS[i]}_0"]
    return [SLOTS[OUTPUTS[i]], *range(first, first + STATE_PER_CONTROLLER)]


def start():
    """(bus, bounds) of a step in which most signals are outside their bands."""
    values = control(1, np.random.default_rng(5))
    return values["isv"].astype(np.float32), values["bounds"].astype(np.float32)


class Launches:
    """A region with one launch for each of `free`: the controllers that may move in it, all others held.

    A held controller still measures, and a move ends everybody's measuring: a second launch over the same bus would
    count every reading twice and find none left at a move. So each launch has a bus of its own.
    """

    def __init__(self, device, free):
        bus, bounds = start()
        self.device, self.free = device, free
        self.step, self.bounds = device.empty((1,), np.int64), device.empty(bounds.shape, np.float32)
        self.buses = [device.empty(bus.shape, np.float32) for _ in free]
        self.frozen = [device.empty((len(TABLE),), np.uint8) for _ in free]
        device.fill(self.bounds, bounds)
        for array, held, may in zip(self.buses, self.frozen, free):
            device.fill(array, bus)
            device.fill(held, np.array([i not in may for i in range(len(TABLE))], np.uint8))
        self.region = device.region(self.body, "controllers")

    def body(self):
        for bus, held in zip(self.buses, self.frozen):
            self.device.launch(KERNEL, bus, self.step, held, self.bounds)

    def run(self):
        """The bus after CALLS steps: of each launch the slots of the controllers that it let move."""
        for call in range(CALLS):
            self.device.fill(self.step, np.array([FIRST + call]))
            self.region()
        together = start()[0]
        for array, may in zip(self.buses, self.free):
            bus = self.device.to_host(array)
            for i in may:
                together[own_slots(i)] = bus[own_slots(i)]
        return together


def both(device):
    """All twelve free in one launch, and one in each of twelve."""
    everyone = range(len(TABLE))
    return Launches(device, [set(everyone)]), Launches(device, [{i} for i in everyone])


@pytest.mark.parametrize("name", ["cpu", CUDA])
def test_one_launch_does_what_twelve_do(name):
    fused, apart = both(open_device(name))
    ours, want, before = fused.run(), apart.run(), start()[0]
    moved = [name for name in OUTPUTS if ours[SLOTS[name]] != before[SLOTS[name]]]
    assert len(TABLE) / 3 < len(moved) < len(TABLE), moved
    assert ours.tobytes() == fused.device.to_host(fused.buses[0]).tobytes(), "a slot of no controller has changed"
    assert [name for name, slot in SLOTS.items() if ours[slot].tobytes() != want[slot].tobytes()] == []


@pytest.mark.parametrize("name", [CUDA])
def test_twelve_nodes_have_become_one(name, capsys):
    launches = both(open_device(name))
    for each in launches:
        each.run()
    nodes = [each.region.graph.nodes() for each in launches]
    with capsys.disabled():
        print(f"\n  graph nodes of the controllers: {nodes[1]} launched one by one, {nodes[0]} fused")
    assert nodes == [1, len(TABLE)]
