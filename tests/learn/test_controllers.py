"""Start values, clamps and freezing, from the configuration to the bus."""

import numpy as np
import pytest

from kernels.controllers import GAMMA, TABLE
from kernels.isv import GROUPS, OUTPUTS, SIGNALS, SIZE, SLOTS, STATE_PER_CONTROLLER
from tests.learn.stage import Stage, small_config
from trainer.config import build_config, load_config, profile_names
from trainer.device import NumpyDevice
from trainer.learn.controllers import bus_fields, clamps, frozen_mask, isv_init, start_values


def test_the_bus_starts_at_the_profile_and_without_signals():
    cfg = load_config("cpu-demo")
    bus = isv_init(cfg)
    assert bus.dtype == np.float32 and bus.shape == (SIZE,) == (585,)
    want = {"gamma": 0.95, "tau": 0.01, "ppo_clip": 0.2, "entropy_coef": 0.03, "per_alpha": 0.6, "reward_scale": 0.2}
    want |= {"rollout_len": 16, "per_beta": 0.4, "lr_factor": 1.0} | {f"lr_{g}": 2e-3 for g in GROUPS}
    for name, value in want.items():
        assert bus[SLOTS[name]] == np.float32(value), name
    assert all(bus[SLOTS[s]] == 0 for s in SIGNALS)
    assert np.count_nonzero(bus) == len(want)


def test_every_signal_of_the_table_is_on_the_bus():
    assert {c.signal for c in TABLE} <= set(SIGNALS) and tuple(c.output for c in TABLE) == OUTPUTS
    first = SLOTS[f"state_{OUTPUTS[0]}_0"]
    for i, name in enumerate(OUTPUTS):  # the kernel reads outputs and states as two blocks
        assert SLOTS[name] == i and SLOTS[f"state_{name}_0"] == first + i * STATE_PER_CONTROLLER


@pytest.mark.parametrize("profile", profile_names())
def test_clamps_hold_the_start_values_and_are_sane(profile):
    cfg = load_config(profile)
    bounds = dict(zip(OUTPUTS, clamps(cfg)))
    start = start_values(cfg)
    start["gamma"] = 1 / (1 - start["gamma"])
    assert all(bounds[n][0] <= start[n] <= bounds[n][1] for n in OUTPUTS)
    assert all((b > 0).all() for b in bounds.values())
    for name in ("tau", "ppo_clip", "per_alpha"):
        assert bounds[name][1] < 1
    assert 1 - 1 / bounds["gamma"][1] < 1 and bounds["rollout_len"].tolist() == [16, 128]
    assert OUTPUTS[GAMMA] == "gamma"


def test_frozen_by_name_or_all():
    cfg = small_config(frozen=("tau", "lr_q"))
    assert [n for n, f in zip(OUTPUTS, frozen_mask(cfg)) if f] == ["tau", "lr_q"]
    assert frozen_mask(small_config(frozen=("all",))).all()
    assert not frozen_mask(small_config()).any()


def test_the_arrays_of_the_bus():
    fields = {f.name: f for f in bus_fields(build_config({"profile": "custom"}))}
    assert fields["isv"].shape == (585,) and fields["clock.step"].dtype == "int64"
    assert {n for n, f in fields.items() if f.kind == "data"} == {"controllers.frozen", "controllers.bounds"}


def run(frozen, steps=220):
    stage = Stage(NumpyDevice(), small_config(frozen=frozen))
    for _ in range(steps):
        stage.store["isv"][SLOTS["target_std"]] = 8.0
        stage.step()
    return stage


def test_all_frozen_is_the_run_of_fixed_hyperparameters():
    stage = run(("all",))
    np.testing.assert_array_equal(stage.store["isv"][: len(OUTPUTS)], isv_init(stage.cfg)[: len(OUTPUTS)])
    assert stage.store["isv"][SLOTS["state_reward_scale_0"]] == 8


def test_controllers_act_in_a_run_and_the_clock_advances():
    stage = run(())
    assert stage.store["clock.step"][0] == 220
    assert stage.store["isv"][SLOTS["reward_scale"]] == pytest.approx(0.2 / 1.5**2)
    assert stage.store["isv"][SLOTS["gamma"]] < 0.95  # trades of 1 to 8 rows want a shorter horizon
    assert stage.store["isv"][SLOTS["trades"]] > 100 and 40 < stage.store["isv"][SLOTS["hold_pct"]] < 60
