"""n-step transitions against brute force over the whole recorded history."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nstep_write import NEVER, TRANSITION, nstep_write
from tests.kernels.test_gae import episodes

P, H, A = 8, 5, 11


def history(rng, steps, b, p_end):
    valid, done = episodes(rng, steps, b, p_end)
    mask = rng.integers(0, 2, (steps, b, A)).astype(np.uint8)
    return {
        "row": rng.integers(0, 10**6, (steps, b)).astype(np.int32),
        "private": rng.normal(size=(steps, b, P)),
        "h_prev": rng.normal(size=(steps, b, H)),
        "mask": mask,
        "action": rng.integers(0, A, (steps, b)).astype(np.int32),
        "reward": rng.normal(size=(steps, b)) * (valid != 0),
        "valid": valid,
        "done": done,
    }


def replay(c, n):
    tails = {"": (), "P": (P,), "H": (H,), "A": (A,), "n": (n,)}
    return {
        name: np.zeros((c, *tails[tail]), np.float64 if dtype == "real" else dtype)
        for name, dtype, tail, _ in TRANSITION
    }


def write_all(past, n, c, top=1.0):
    steps = len(past["row"])
    ring = {k: np.zeros((n + 1, *v.shape[1:]), v.dtype) for k, v in past.items()}
    slots, priority, pushed = replay(c, n), np.full(c, NEVER), np.zeros(1, np.int64)
    for t in range(steps):
        nstep_write(
            *(np.ascontiguousarray(v[t]) for v in past.values()),
            *ring.values(),
            *(pushed, np.array([top])),
            *slots.values(),
            priority,
        )
    assert pushed[0] == steps
    return slots, priority


def brute_force(past, t, i, n):
    """The transition of backtest i that starts at step t, from the whole history."""
    ends = [k for k in range(n) if past["done"][t + k, i]]
    k = ends[0] + 1 if ends else n
    rewards = [past["reward"][t + j, i] if j < k else 0.0 for j in range(n)]
    return {
        "row": past["row"][t, i],
        "private": past["private"][t, i],
        "h_prev": past["h_prev"][t, i],
        "action": past["action"][t, i],
        "rewards": rewards,
        "n_used": k,
        "terminal": past["done"][t + k - 1, i] == 2,
        "next_row": past["row"][t + k, i],
        "next_private": past["private"][t + k, i],
        "next_h_prev": past["h_prev"][t + k, i],
        "next_mask": past["mask"][t + k, i],
    }


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.15, 0.6]),
    st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(n, b, steps, p_end, seed):
    """Also once replay has wrapped: only the newest C / B starting steps remain."""
    past = history(np.random.default_rng(seed), steps, b, p_end)
    blocks = 12
    slots, priority = write_all(past, n, blocks * b, top=4.0)
    complete = range(max(0, steps - n - blocks), steps - n)
    for t in complete:
        for i in range(b):
            at = (t % blocks) * b + i
            if not past["valid"][t, i]:
                assert priority[at] == NEVER
                continue
            assert priority[at] == 4.0
            for name, want in brute_force(past, t, i, n).items():
                np.testing.assert_array_equal(slots[name][at], want, err_msg=name)
    written = min(max(steps - n, 0), blocks) * b
    assert (priority[written:] == NEVER).all() and (priority != NEVER).sum() <= written


@pytest.mark.parametrize("done, terminal", [(1, 0), (2, 1)])
def test_an_end_on_the_way_shortens_the_transition(done, terminal):
    past = history(np.random.default_rng(0), 4, 1, 0.0)
    past["done"][1, 0], past["valid"][:, 0] = done, [1, 1, 0, 1]
    past["reward"][:, 0] = [1, 2, 0, 100]
    slots, _ = write_all(past, 3, 4)
    assert slots["n_used"][0] == 2 and slots["terminal"][0] == terminal
    assert slots["rewards"][0].tolist() == [1, 2, 0]
    assert slots["next_row"][0] == past["row"][2, 0]  # the final observation, seen again at the reset step


def test_a_transition_that_starts_at_a_reset_cannot_be_drawn():
    past = history(np.random.default_rng(0), 5, 2, 0.0)
    past["valid"][:] = 1
    past["valid"][1, 0] = 0
    _, priority = write_all(past, 1, 8, top=2.5)
    assert priority.tolist() == [2.5, 2.5, NEVER, 2.5, 2.5, 2.5, 2.5, 2.5]
