"""Config: every shipped profile builds; a wrong key, value or name is one clear line."""

import pytest

from trainer.config import load_config, profile_names
from trainer.errors import ConfigError


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_build(name):
    assert load_config(name).profile == name


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["env.fee_tick=1"], ["env.fee_tick", "did you mean 'env.fee_ticks'"]),
        (["env.n_backtests=63"], ["learn.batch 64 must divide env.n_backtests 63"]),
        (["env.fee_ticks=-1"], ["env.fee_ticks", "-1"]),
        (["env.fee_ticks=0.0004"], ["--set: env: fee_ticks 0.0004", "write 0, or 0.001 or more"]),
        (["fee=1"], ["section.key=value"]),
        (["learn.v_min=5", "learn.v_max=-5"], ["--set: learn: v_max -5 must be above v_min 5"]),
        (["eval.hold_pct_min=80"], ["hold_pct_max 70 must be above hold_pct_min 80"]),
        (["data.session_gap_s=inf"], ["data.session_gap_s", "finite", "inf"]),
        (["net.hold_bias=nan"], ["net.hold_bias", "finite", "nan"]),
    ],
)
def test_bad_overrides_name_the_key(overrides, words):
    with pytest.raises(ConfigError) as error:
        load_config("cpu-demo", overrides)
    assert error.value.exit_code == 2
    for word in words:
        assert word in str(error.value)
    assert str(error.value).startswith("--set"), "the profile is not where the mistake is"
    assert len(str(error.value)) < 200, "a rule over several keys shows no whole section"


def test_an_unknown_controller_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"frozen: no controller is named 'gama' \(did you mean 'gamma'\?\)") as e:
        load_config("cpu-demo", ["learn.frozen=['gama']"])
    assert "choose from all, gamma, tau" in str(e.value)


def test_unknown_profile_shows_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cpu-demo'"):
        load_config("cpu-dem")


def test_identity_ignores_how_a_run_is_carried_out():
    a = load_config("small", ["run.n_steps=10", "run.device=cpu"])
    assert a.digest() == load_config("small").digest()
    assert a.digest() != load_config("small", ["learn.seed=1"]).digest()


def test_rates_that_decay_over_the_run_make_its_length_part_of_the_identity():
    steps = ("run.n_steps=700", "run.n_steps=900")
    free = [load_config("small", [item]) for item in steps]
    tied = [load_config("small", [item, "learn.lr_decay_steps=-1"]) for item in steps]
    assert free[0].digest() == free[1].digest() and [cfg.lr_decay_steps for cfg in free] == [0, 0]
    assert tied[0].digest() != tied[1].digest() and [cfg.lr_decay_steps for cfg in tied] == [700, 900]
    said = load_config("small", ["run.n_steps=700", "learn.lr_decay_steps=900"])  # the same rates, said otherwise
    assert said.digest() == tied[1].digest()
