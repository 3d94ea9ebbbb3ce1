"""Prioritised replay: frequencies by chi-square, integer masses that never drift, weights, priorities."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels import per_mass, per_sample, per_update
from kernels.isv import SIZE, SLOTS


def bus(alpha=0.6, real=np.float32):
    isv = np.zeros(SIZE, real)
    isv[SLOTS["per_alpha"]] = alpha
    return isv


def masses(priority, alpha=0.6):
    mass = np.empty(len(priority), np.int32)
    block = np.empty((per_mass.n_blocks(len(priority)), 3), np.int64)
    per_mass.per_mass(bus(alpha, priority.dtype), priority, mass, block)
    return mass, block


def draw(mass, block, m, step=0, seed=1, beta0=0.4, real=np.float32):
    slots, weight, isv = np.empty(m, np.int32), np.empty(m, real), bus(real=real)
    per_sample.per_sample(isv, np.array([step], np.int64), mass, block, seed, beta0, slots, weight)
    return slots, weight, isv


def counts_of_draws(mass, block, m, steps):
    counts = np.zeros(len(mass), np.int64)
    for step in range(steps):
        np.add.at(counts, draw(mass, block, m, step)[0], 1)
    return counts


def test_frequencies_are_proportional_to_priority_to_the_alpha():
    priority = np.random.default_rng(0).exponential(size=300).astype(np.float32)
    mass, block = masses(priority)
    # M = 7 shares no factor with the stratum edges of 300 slots, so every slot is cut by them somewhere.
    counts = counts_of_draws(mass, block, 7, 4000)
    share = (priority.astype(np.float64) + 1e-6) ** 0.6
    assert stats.chisquare(counts, share / share.sum() * counts.sum()).pvalue > 0.01
    flat = np.full(300, counts.sum() / 300)
    assert stats.chisquare(counts, flat).pvalue < 1e-12  # the test could tell uniform from proportional


def test_alpha_zero_is_uniform():
    mass, block = masses(np.random.default_rng(1).exponential(size=100).astype(np.float32), alpha=0.0)
    assert set(mass) == {2**20}
    assert stats.chisquare(counts_of_draws(mass, block, 5, 1000)).pvalue > 0.01


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_slots_without_mass_are_never_drawn(data):
    c = data.draw(st.integers(1, 700))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    priority = np.where(rng.random(c) < 0.7, -1, rng.exponential(size=c)).astype(np.float32)
    priority[data.draw(st.integers(0, c - 1))] = 0.0  # zero loss is drawable, an empty slot is not
    mass, block = masses(priority)
    slots, weight, _ = draw(mass, block, data.draw(st.integers(1, 64)), data.draw(st.integers(0, 2**40)))
    assert (priority[slots] >= 0).all() and (mass[slots] > 0).all()
    assert np.isfinite(weight).all() and weight.max() == 1 and (weight > 0).all()


def test_a_point_on_the_edge_of_two_slots_belongs_to_the_later_one():
    """Masses of 1 and one draw for each: every point is an edge, and empty slots lie between them."""
    priority = np.where(np.arange(99) % 3, -1, 0).astype(np.float32)
    mass, block = masses(priority, alpha=1.0)
    assert mass.tolist() == [1, 0, 0] * 33
    assert draw(mass, block, 33)[0].tolist() == list(range(0, 99, 3))


def test_each_draw_falls_into_its_own_stratum():
    mass, block = masses(np.random.default_rng(2).exponential(size=1000).astype(np.float32))
    running = np.cumsum(mass.astype(object))
    total, m = running[-1], 64
    for step in range(50):
        for i, slot in enumerate(draw(mass, block, m, step)[0]):
            below = running[slot - 1] if slot else 0
            assert below < (i + 1) * total // m and running[slot] > i * total // m


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 900), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_search_over_blocks_finds_the_same_slots(c, seed, m):
    """What a GPU does: block sums first, then inside one block."""
    rng = np.random.default_rng(seed)
    priority = np.where(rng.random(c) < 0.3, -1, rng.exponential(size=c) ** 4).astype(np.float32)
    priority[rng.integers(c)] = 1
    mass, block = masses(priority)
    running = [0, *np.cumsum(block[:, 0]).tolist()]
    slots, _, _ = draw(mass, block, m, seed=seed % 1000)
    for slot in slots.tolist():
        g = slot // per_mass.BLOCK
        inside = np.cumsum(mass[g * per_mass.BLOCK : (g + 1) * per_mass.BLOCK].astype(np.int64))
        point = running[g] + int(inside[slot % per_mass.BLOCK]) - 1  # the last point of this slot
        found = next(i for i in range(len(block)) if running[i + 1] > point)
        assert found == g
        assert g * per_mass.BLOCK + int(np.searchsorted(inside, point - running[g], side="right")) == slot


def test_masses_after_a_hundred_thousand_updates_equal_a_fresh_computation():
    """No drift: the sums after 100,000 updates are the exact integer sums of masses made from nothing."""
    rng, c, m = np.random.default_rng(3), 1024, 64
    priority, top = np.full(c, -1, np.float32), np.ones(1, np.float32)
    priority[: c // 2] = 1
    mass, block = masses(priority)
    for step in range(100_000 // m + 1):
        alpha = 0.6 if step < 800 else 0.9
        slots, _, _ = draw(mass, block, m, step)
        per_update.per_update(slots, rng.exponential(size=m).astype(np.float32), priority, top)
        mass, block = masses(priority, alpha)
    want = [0 if p < 0 else max(1, round((float(p) + 1e-6) ** 0.9 * 2**20)) for p in priority]
    assert np.allclose(mass, want, rtol=2e-6, atol=1)
    fresh, fresh_block = masses(priority.copy(), 0.9)
    assert (mass == fresh).all() and (block == fresh_block).all()
    assert block[:, 0].sum() == sum(mass.tolist())
    assert block[:, 2].sum() == c // 2
    assert top[0] >= priority.max()


def test_sums_do_not_depend_on_the_order_of_slots():
    rng = np.random.default_rng(4)
    priority = rng.exponential(size=2048).astype(np.float32)
    _, block = masses(priority)
    _, shuffled = masses(rng.permutation(priority))
    assert (block.sum(axis=0) == shuffled.sum(axis=0)).all()


@pytest.mark.parametrize("value, want", [(0.0, 1), (1e-9, 1), (1.0, 2**20), (1e30, 2**28), (-1, 0)])
def test_mass_stays_within_its_range(value, want):
    mass, _ = masses(np.array([value, 0.5], np.float32), alpha=1.0)
    assert abs(int(mass[0]) - want) <= 2


def test_sums_of_the_largest_masses_do_not_overflow():
    _, block = masses(np.full(512, 1e30, np.float32), alpha=1.0)
    assert block[:, 0].tolist() == [256 * 2**28] * 2 and block[:, 1].tolist() == [256 * 2**40] * 2
    assert int(block[0, 1]) // 256 * 2**20 < 2**63  # a million such slots still fit


@pytest.mark.parametrize("step, beta", [(0, 0.4), (50_000, 0.7), (100_000, 1.0), (250_000, 1.0)])
def test_weights_follow_the_annealed_beta(step, beta):
    mass, block = masses(np.random.default_rng(5).exponential(size=500).astype(np.float64))
    slots, weight, isv = draw(mass, block, 32, step, real=np.float64)
    p = mass[slots] / mass.sum()
    want = (500 * p) ** -beta
    np.testing.assert_allclose(weight, want / want.max(), rtol=1e-12)
    assert math.isclose(isv[SLOTS["per_beta"]], beta)


def test_effective_sample_size_counts_drawable_slots_only():
    priority = np.full(1000, -1, np.float64)
    priority[:400] = 1.0
    *_, isv = draw(*masses(priority), 8, real=np.float64)
    assert math.isclose(isv[SLOTS["priority_ess"]], 1.0, rel_tol=1e-5)
    priority[:400] = np.random.default_rng(6).exponential(size=400)
    *_, isv = draw(*masses(priority), 8, real=np.float64)
    p = priority[:400] ** 0.6
    assert math.isclose(isv[SLOTS["priority_ess"]], p.sum() ** 2 / (p**2).sum() / 400, rel_tol=1e-3)


def test_draws_repeat_for_the_same_step_and_differ_between_steps_and_seeds():
    mass, block = masses(np.random.default_rng(7).exponential(size=5000).astype(np.float32))
    one = draw(mass, block, 64, 5)[0]
    assert (draw(mass, block, 64, 5)[0] == one).all()
    assert (draw(mass, block, 64, 6)[0] != one).mean() > 0.5
    assert (draw(mass, block, 64, 5, seed=2)[0] != one).mean() > 0.5


def test_a_slot_drawn_twice_gets_the_larger_loss():
    priority, top = np.full(8, 9, np.float32), np.array([9], np.float32)
    loss = np.array([0.1, 3.0, 0.2, -1e-8], np.float32)
    per_update.per_update(np.array([2, 5, 2, 7], np.int32), loss, priority, top)
    assert priority.tolist() == [9, 9, np.float32(0.2), 9, 9, 3, 9, 0]
    assert top[0] == 9


def test_the_largest_priority_only_grows_and_ignores_nan():
    priority, top = np.full(4, 1, np.float32), np.array([1], np.float32)
    for loss, want in ((5.0, 5), (2.0, 5), (np.nan, 5)):
        per_update.per_update(np.array([0], np.int32), np.array([loss], np.float32), priority, top)
        assert top[0] == want
