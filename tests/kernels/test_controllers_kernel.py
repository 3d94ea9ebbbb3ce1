"""Each controller's step response, its bounds, freezing, cadence, and the closed loop of all twelve."""

import numpy as np
import pytest

from kernels.controllers import BAND, GAMMA, PERIOD, TABLE, bounds_of, controllers
from kernels.isv import GROUPS, OUTPUTS, SIZE, SLOTS, STATE

NAMES = [c.output for c in TABLE]
START = {
    "gamma": 0.95,
    "tau": 0.01,
    "ppo_clip": 0.2,
    "entropy_coef": 0.03,
    "per_alpha": 0.6,
    "reward_scale": 0.2,
    "rollout_len": 32.0,
} | {n: 2e-3 for n in OUTPUTS if n.startswith("lr_")}


class Bench:
    """A bus with the start values, a clock, and no signals."""

    def __init__(self, frozen=(), real=np.float32, **start):
        self.isv, self.step = np.zeros(SIZE, real), np.zeros(1, np.int64)
        for name, value in (START | start).items():
            self.isv[SLOTS[name]] = value
        self.frozen = np.array([n in frozen for n in NAMES], np.uint8)
        values = np.array([(START | start)[n] for n in NAMES])
        values[GAMMA] = 1 / (1 - values[GAMMA])
        self.bounds = bounds_of(values).astype(real)

    def __getitem__(self, name):
        return float(self.isv[SLOTS[name]])

    def outputs(self):
        return {n: self[n] for n in NAMES}

    def own(self, name):
        """The output in the units that are multiplied: the horizon for gamma."""
        return 1 / (1 - self[name]) if name == "gamma" else self[name]

    def signal(self, controller, ratio):
        """Puts the controller's signal at `ratio` times its target."""
        target = controller.target or self.own(controller.output)
        self.isv[SLOTS[controller.signal]] = ratio * target / controller.factor
        self.isv[SLOTS["rollout_kl_len"]] = self["rollout_len"]

    def run(self, steps=PERIOD, before=None):
        for _ in range(steps):
            if before:
                before()
            controllers(self.isv, self.step, self.frozen, self.bounds)
            self.step += 1


def test_the_table():
    """What moves what, and which way: the other tests take it from the table."""
    table = {c.output: (c.signal, c.target, c.direction) for c in TABLE}
    assert table == {
        "gamma": ("hold_rows", 0.0, +1),
        "tau": ("target_distance", 0.01, +1),
        "ppo_clip": ("approx_kl", 0.01, -1),
        "entropy_coef": ("entropy_frac", 0.4, -1),
        "per_alpha": ("priority_ess", 0.5, +1),
        "reward_scale": ("target_std", 2.0, -1),
        "rollout_len": ("rollout_kl", 0.02, -1),
        **{f"lr_{g}": (f"update_rms_{g}", 1e-3, -1) for g in GROUPS},
    }


def by_name(name):
    return next(c for c in TABLE if c.output == name)


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
@pytest.mark.parametrize("ratio, sign", [(2.0, 1), (0.5, -1)])
def test_one_bounded_step_the_right_way(c, ratio, sign):
    bench = Bench()
    before = bench.outputs()
    bench.signal(c, ratio)
    at = bench.own(c.output)
    bench.run()
    assert bench.own(c.output) == pytest.approx(at * c.step ** (sign * c.direction), rel=1e-4)
    assert {n: v for n, v in bench.outputs().items() if v != before[n]}.keys() == {c.output}


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
@pytest.mark.parametrize("ratio", [1.45, 1.0, 0.7])
def test_nothing_moves_inside_the_band(c, ratio):
    bench = Bench()
    before = bench.outputs()
    bench.run(5 * PERIOD, lambda: bench.signal(c, ratio))
    assert bench.outputs() == before


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
@pytest.mark.parametrize("ratio", [1e3, 1e-3])
def test_outputs_stop_at_their_bounds(c, ratio):
    bench, i = Bench(), NAMES.index(c.output)
    low, high = bench.bounds[i]
    seen = []
    for _ in range(30):
        bench.run(PERIOD, lambda: bench.signal(c, ratio))
        seen.append(bench.own(c.output))
    up = (ratio > 1) == (c.direction > 0)
    assert seen[-1] == pytest.approx(high if up else low, rel=1e-4)
    assert all(low * (1 - 1e-4) <= x <= high * (1 + 1e-4) for x in seen)
    steps = np.abs(np.diff(np.log(seen)))
    assert steps.max() <= np.log(c.step) + 1e-3


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
def test_a_frozen_controller_measures_and_never_moves(c):
    bench = Bench(frozen=(c.output,))
    before = bench.outputs()
    bench.run(10 * PERIOD, lambda: bench.signal(c, 5.0))
    assert bench.outputs() == before
    want = 5.0 * (c.target or bench.own(c.output))
    assert bench[f"state_{c.output}_0"] == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("gamma", [0.1, 0.2, 0.3, 0.95, 0.9934])
def test_standing_still_does_not_round_gamma(gamma):
    bench = Bench(gamma=gamma)
    bench.run(3 * PERIOD, lambda: bench.signal(by_name("gamma"), 1.0))
    assert bench.isv[SLOTS["gamma"]] == np.float32(gamma)


def test_outputs_change_every_hundred_steps_only():
    bench, changes = Bench(), []
    for step in range(3 * PERIOD + 5):
        before = bench.isv[: len(TABLE)].copy()
        for c in TABLE:
            bench.signal(c, 3.0)
        bench.run(1)
        if (bench.isv[: len(TABLE)] != before).any():
            changes.append(step + 1)
    assert changes == [PERIOD, 2 * PERIOD, 3 * PERIOD]


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
@pytest.mark.parametrize("absent", [0.0, np.nan, np.inf, -1.0])
def test_an_absent_signal_is_never_acted_on(c, absent):
    bench = Bench()
    bench.isv[SLOTS["rollout_kl_len"]] = bench["rollout_len"]
    bench.isv[SLOTS[c.signal]] = absent
    before = bench.isv.copy()
    bench.run(3 * PERIOD)
    np.testing.assert_array_equal(bench.isv[SLOTS[f"state_{c.output}_0"]], 0)
    np.testing.assert_array_equal(bench.isv[: len(TABLE)], before[: len(TABLE)])


def test_absent_steps_do_not_dilute_the_mean():
    bench, c, n = Bench(), by_name("tau"), iter(range(PERIOD))

    def before():
        bench.isv[SLOTS[c.signal]] = np.nan if next(n) % 4 else 0.02

    bench.run(PERIOD, before)
    assert bench["state_tau_0"] == pytest.approx(0.02, rel=1e-5) and bench["tau"] == pytest.approx(0.015)


def test_a_start_value_outside_the_usual_bounds_is_kept():
    bench = Bench(ppo_clip=0.05, per_alpha=0.0, entropy_coef=0.5)
    for name, ratio in (("ppo_clip", 3.0), ("per_alpha", 0.1), ("entropy_coef", 0.1)):
        bench.signal(by_name(name), ratio)
    bench.run()
    assert bench["ppo_clip"] == pytest.approx(0.05) and bench["per_alpha"] == 0 and bench["entropy_coef"] == 0.5


def test_gamma_moves_by_its_horizon():
    bench = Bench()
    bench.isv[SLOTS["hold_rows"]] = 30.0  # wants a horizon of 60 rows; it is 20
    bench.run()
    assert bench["gamma"] == pytest.approx(1 - 1 / 30, rel=1e-6)
    bench.run()
    assert bench["gamma"] == pytest.approx(1 - 1 / 45, rel=1e-6)
    bench.run(3 * PERIOD)  # 45 is within a factor of 1.5 of 60
    assert bench["gamma"] == pytest.approx(1 - 1 / 45, rel=1e-6)


def test_the_rollout_length_waits_for_the_kl_of_its_own_length():
    bench = Bench(rollout_len=64.0)
    bench.signal(by_name("rollout_len"), 4.0)
    bench.run()
    assert bench["rollout_len"] == 32
    bench.run(2 * PERIOD)  # rollout_kl still tells of T = 64
    assert bench["rollout_len"] == 32
    bench.run(PERIOD, lambda: bench.signal(by_name("rollout_len"), 4.0))
    assert bench["rollout_len"] == 16


def test_the_rollout_length_stays_on_its_menu():
    bench, seen = Bench(rollout_len=16.0), []
    for ratio in (0.1,) * 5 + (10.0,) * 12:
        bench.run(PERIOD, lambda r=ratio: bench.signal(by_name("rollout_len"), r))
        seen.append(bench["rollout_len"])
    assert set(seen) == {16, 32, 64, 128} and seen[-1] == 16


def test_the_blend_follows_its_formulas():
    """Readings 1, 3, 2 through the recursions of the docstring, by hand."""
    bench = Bench(frozen=("tau",), real=np.float64)
    estimate = noise = signal = 0.0
    for k, z in enumerate((1.0, 3.0, 2.0)):
        bench.run(PERIOD, lambda z=z: bench.isv.__setitem__(SLOTS["target_distance"], z))
        innovation = z - estimate
        if k == 0:
            gain, change = 1.0, innovation
        else:
            noise += 0.25 * (innovation**2 - noise)
            gain = max(0.5, signal / (signal + noise))
            change = gain * innovation
            signal += 0.25 * (change**2 - signal)
        estimate += change
        got = [bench[f"state_tau_{STATE.index(s)}"] for s in ("estimate", "noise_variance", "signal_variance", "gain")]
        np.testing.assert_allclose(got, [estimate, noise, signal, gain], rtol=1e-12)
    assert bench[f"state_tau_{STATE.index('updates')}"] == 3
    assert bench[f"state_tau_{STATE.index('target')}"] == 0.01


@pytest.mark.parametrize("c", TABLE, ids=NAMES)
@pytest.mark.parametrize("off", [4.0, 0.25])
def test_the_closed_loop_settles(c, off):
    """A plant whose signal answers the output in proportion, with 30 % noise, ends in the band and stays there."""
    rng = np.random.default_rng(0)
    bench, i = Bench(), NAMES.index(c.output)
    bench.bounds[i] = 1e-6, 1e6
    if c.output == "rollout_len":
        bench.bounds[i] = 1, 1024
    start, fixed_target = bench.own(c.output), bench.own(c.output) * off if not c.target else c.target

    def plant():
        gain = bench.own(c.output) / start
        # The signal falls as an output rises that moves up with it, and the other way round.
        level = fixed_target if not c.target else c.target * off * gain ** (-c.direction)
        bench.isv[SLOTS[c.signal]] = level / c.factor * np.exp(0.3 * rng.normal() - 0.045)
        bench.isv[SLOTS["rollout_kl_len"]] = bench["rollout_len"]

    trace = []
    for _ in range(40):
        bench.run(PERIOD, plant)
        trace.append(bench.own(c.output))
    level = bench.isv[SLOTS[f"state_{c.output}_0"]]
    target = bench.own(c.output) if not c.target else c.target
    assert target / BAND / 1.1 <= level <= target * BAND * 1.1
    assert len(set(trace[-15:])) == 1  # no limit cycle
