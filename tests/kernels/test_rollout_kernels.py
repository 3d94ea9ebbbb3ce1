"""The rollout's buffers, the permutation that serves them, and the boundary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels import rollout_end, rollout_serve, rollout_write
from kernels.isv import SIZE, SLOTS
from kernels.rollout_serve import permute
from kernels.rollout_write import STAGED


class Buffers:
    """The arrays of rollout_write at B = 3, TM = 4, and a history of the steps written."""

    def __init__(self, length=4):
        tails = {"": (), "P": (8,), "H": (2,), "A": (11,)}
        self.arrays = {n: np.zeros((2, 4, 3, *tails[t]), np.float32 if d == "real" else d) for n, d, t, _ in STAGED}
        self.length = np.full(2, length, np.int32)
        self.active, self.filled = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.bootstrap, self.past = np.zeros(3, np.float32), []

    def write(self, number):
        staged = {n: np.full(a.shape[2:], number % 100, a.dtype) for n, a in self.arrays.items()}
        rollout_write.rollout_write(
            *staged.values(), *(self.length, self.active, self.filled, self.bootstrap), *self.arrays.values()
        )


def test_a_rollout_closes_one_step_late_with_the_next_value_as_bootstrap():
    b = Buffers()
    for t in range(4):
        b.write(10 + t)
        assert (b.active[0], b.filled[0]) == (0, t + 1)
    b.write(14)  # row 0 of the next one, and the bootstrap of this one
    assert (b.active[0], b.filled[0]) == (1, 1)
    assert (b.bootstrap == 14).all()
    for name, array in b.arrays.items():
        assert (array[0] == np.arange(10, 14).reshape(4, *[1] * (array.ndim - 2))).all(), name
        assert (array[1, 0] == 14).all() and (array[1, 1:] == 0).all(), name


def test_buffers_alternate_and_each_keeps_its_own_length():
    b = Buffers(length=2)
    for number in range(3):
        b.write(number)
    b.length[1] = 4  # what rollout_end does at the boundary
    for number in range(3, 7):
        b.write(number)
    assert (b.active[0], b.filled[0]) == (0, 1)
    assert b.arrays["row"][1, :, 0].tolist() == [2, 3, 4, 5] and b.arrays["row"][0, 0, 0] == 6


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_the_permutation_is_a_bijection(n, epoch, seed):
    image = permute(np.arange(n, dtype=np.uint32), n, epoch, seed)
    assert (np.sort(image) == np.arange(n)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 255, 256, 257, 16 * 1024, 128 * 1000])
def test_the_permutation_is_a_bijection_at_the_edges_of_powers_of_two(n):
    image = permute(np.arange(n, dtype=np.uint32), n, 7, 1)
    assert (np.sort(image) == np.arange(n)).all()


def test_permutations_of_different_epochs_and_seeds_differ():
    x = np.arange(1024, dtype=np.uint32)
    one = permute(x, 1024, 1, 0)
    for other in (x, permute(x, 1024, 2, 0), permute(x, 1024, 1, 1)):
        assert (one == other).mean() < 0.02


@pytest.mark.parametrize("n", [48, 64])
def test_every_row_is_served_at_every_place_equally_often(n):
    """Chi-square over (place, row) pairs in 20 epochs a cell; rows and columns sum to fixed numbers."""
    epochs = 20 * n
    seen = np.zeros((n, n))
    x = np.arange(n, dtype=np.uint32)
    for epoch in range(epochs):
        seen[x, permute(x, n, epoch, 3)] += 1
    statistic = ((seen - 20) ** 2 / 20).sum()
    assert 1e-4 < stats.chi2.sf(statistic, (n - 1) ** 2) < 1 - 1e-4


class Server:
    def __init__(self, m, lengths=(4, 4), longest=8, b=6):
        self.active = np.array([1], np.int64)
        self.length = np.array(lengths, np.int32)
        self.epoch, self.position = np.array([5], np.int64), np.zeros(1, np.int64)
        self.valid, self.index = np.zeros((2, longest, b), np.int8), np.empty(m, np.int32)

    def __call__(self):
        rollout_serve.rollout_serve(self.active, self.length, self.epoch, self.position, self.valid, 9, self.index)
        return self.index.tolist()


@pytest.mark.parametrize("m, steps", [(6, 4), (3, 8), (2, 12), (1, 24)])
def test_an_epoch_serves_each_row_once(m, steps):
    serve = Server(m)
    rows = [i for _ in range(steps) for i in serve()]
    assert sorted(rows) == list(range(24)) and rows != sorted(rows)
    assert serve.epoch[0] == 5 and serve.position[0] == steps


def test_a_longer_next_rollout_begins_a_second_epoch_in_another_order():
    serve = Server(6)
    first = [i for _ in range(4) for i in serve()]
    second = [i for _ in range(4) for i in serve()]
    assert serve.epoch[0] == 6 and sorted(second) == sorted(first) and second != first


def test_rows_come_from_the_finished_buffer_and_its_own_length():
    serve = Server(6, lengths=(8, 2))
    serve.active[0] = 0
    rows = [i for _ in range(2) for i in serve()]
    assert sorted(rows) == list(range(8 * 6, 8 * 6 + 12))  # buffer 1 begins after TM * B rows


def test_the_boundary_latches_the_kl_and_takes_over_the_length():
    isv = np.zeros(SIZE, np.float32)
    isv[SLOTS["approx_kl"]], isv[SLOTS["rollout_len"]] = 0.03, 32
    length, epoch, position = np.array([64, 16], np.int32), np.array([3], np.int64), np.array([16], np.int64)
    rollout_end.rollout_end(isv, np.array([1], np.int64), length, epoch, position)
    assert isv[SLOTS["rollout_kl"]] == np.float32(0.03) and isv[SLOTS["rollout_kl_len"]] == 16
    assert length.tolist() == [64, 32] and epoch[0] == 4 and position[0] == 0
