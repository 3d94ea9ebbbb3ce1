"""Walk-forward folds: properties over every size, leakage checked row by row, and advice that really fits."""

import json
import re
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainer.config import StudyConfig, load_config
from trainer.data.folds import Fold, FoldPlan, longest_session, make_folds
from trainer.errors import DataError

plans = st.builds(
    FoldPlan,
    folds=st.integers(1, 6),
    look_back=st.integers(0, 60),
    window=st.integers(4, 32),
    n_step=st.integers(1, 8),
    label_rows=st.integers(1, 80),
    episode_len=st.integers(8, 100),
    validation_share=st.sampled_from([0.0, 0.15, 0.3]),
)
PLAN = FoldPlan(3, look_back=301, window=16, n_step=3, label_rows=50, episode_len=128, validation_share=0.15)


def series(n: int, session_rows: int = 0) -> tuple[np.ndarray, np.ndarray]:
    t = np.arange(n)
    session = t // session_rows if session_rows else np.zeros(n, np.int64)
    return 1_703_545_200_000_000_000 + 100_000_000 * t, session.astype(np.int32)


@settings(deadline=None, max_examples=60)
@given(plans, st.integers(0, 5000))
def test_every_fold_of_every_series_that_fits(plan, extra):
    n = plan.rows_needed + extra
    folds = make_folds(*series(n), plan)
    assert [f.index for f in folds] == list(range(plan.folds))
    # The windows partition the series, sizes differ by at most one, the last ends at the last row.
    windows = [folds[0].train_window, *(f.test for f in folds)]
    assert windows[0][0] == 0 and windows[-1][1] == n
    assert all(a[1] == b[0] for a, b in pairwise(windows))
    sizes = [b - a for a, b in windows]
    assert max(sizes) - min(sizes) <= 1
    for f, window in zip(folds, windows, strict=False):
        assert f.train_window == window
        assert f.train[0] == window[0]
        assert f.warmup == plan.window and f.purge == plan.purge
        assert f.train[1] - f.train[0] >= f.warmup + plan.episode_len
        if plan.validation_share:
            assert f.val[0] - f.train[1] == f.purge == f.test[0] - f.val[1]
            assert f.val[1] - f.val[0] > f.warmup
        else:
            assert f.val[0] == f.val[1] and f.test[0] - f.train[1] == f.purge
    for later in ("val", "test"):
        for f in folds:
            a, b = getattr(f, later)
            assert a == b or a - plan.look_back - plan.window + 1 > f.train[1] - 1  # inputs of its first row
            assert a == b or f.train[1] - 1 + max(plan.label_rows, plan.n_step, plan.episode_len) <= a  # outcomes


@settings(deadline=None, max_examples=60)
@given(plans)
def test_rows_needed_is_the_least_that_fits(plan):
    make_folds(*series(plan.rows_needed), plan)
    with pytest.raises(DataError, match=f"need at least {plan.rows_needed}, the series has {plan.rows_needed - 1}"):
        make_folds(*series(plan.rows_needed - 1), plan)


@settings(deadline=None, max_examples=80)
@given(plans, st.floats(0.02, 0.999))
def test_the_advice_of_too_few_rows_fits(plan, share):
    n = int(plan.rows_needed * share)
    with pytest.raises(DataError) as error:
        make_folds(*series(n), plan)
    text = str(error.value)
    flags = dict(re.findall(r"--(?:set \w+\.)?(\w+)[ =]([\d.]+)", text))
    if flags:
        changed = replace(plan, **{k: float(v) if k == "validation_share" else int(v) for k, v in flags.items()})
        assert all(getattr(changed, k) < getattr(plan, k) for k in flags)
        assert n >= changed.rows_needed
        assert len(make_folds(*series(n), changed)) == changed.folds
    else:
        least = int(re.search(r"no setting fits fewer than (\d+) rows", text)[1])
        assert n < least


def test_the_advice_in_words():
    with pytest.raises(DataError) as error:
        make_folds(*series(2000), PLAN)
    first, last = str(error.value).splitlines()
    assert first.startswith(f"too few rows: 3 folds need at least {PLAN.rows_needed}, the series has 2000; ")
    assert "317 rows" in first and "look-back 301 + net.window 16" in first
    assert last == ("take more data, or a finer data.sample, or shorten the study: --folds 1 fits")


def test_purge_is_the_longest_reach():
    base = FoldPlan(1, look_back=5, window=4, n_step=3, label_rows=2, episode_len=8, validation_share=0.15)
    assert base.purge == 9
    for name in ("n_step", "label_rows", "episode_len"):
        assert replace(base, **{name: 77}).purge == 77


def test_the_demo_and_an_hour_of_100_ms_rows_and_a_month_of_minutes_leave_room():
    for profile in ("cpu-demo", "small", "seed"):
        cfg = load_config(profile)
        plan = FoldPlan.of(cfg, 301)
        for rows in (40_000, 36_000, 29_996):
            folds = make_folds(*series(rows), plan)
            assert all(f.train[1] - f.train[0] > 0.7 * rows / 4 for f in folds)


def test_plan_reads_the_config():
    cfg = StudyConfig()
    assert asdict(FoldPlan.of(cfg, 7)) == {
        "folds": cfg.folds.folds,
        "look_back": 7,
        "window": cfg.net.window,
        "n_step": cfg.learn.n_step,
        "label_rows": cfg.data.label_rows,
        "episode_len": cfg.env.episode_len,
        "validation_share": cfg.folds.validation_share,
    }


def test_dates_label_and_json():
    ts, session = series(36_000)
    folds = make_folds(ts, session, PLAN)
    assert folds[0].label == "0 2023-12-25T23:15..23:30"
    assert folds[0].dates["test"] == ("2023-12-25T23:15:00.000000000Z", "2023-12-25T23:29:59.900000000Z")
    for f in folds:
        assert Fold.from_json(json.loads(json.dumps(f.to_json()))) == f
    days = make_folds(ts, session, replace(PLAN, folds=1))
    assert days[0].label == "0 2023-12-25T23:30..2023-12-26T00:00"
    slow = make_folds(1_703_545_200_000_000_000 + 60_000_000_000 * np.arange(36_000), session, PLAN)
    assert slow[0].label == "0 2024-01-01T05:00..2024-01-07T10:59"


def test_without_validation_there_is_no_validation_slice():
    fold = make_folds(*series(9000), replace(PLAN, validation_share=0.0))[0]
    assert fold.val[0] == fold.val[1]
    assert "val" not in fold.dates
    assert Fold.from_json(json.loads(json.dumps(fold.to_json()))) == fold


def test_sessions_too_short_for_a_decision_are_an_error():
    with pytest.raises(DataError, match="fold 0: train slice: its longest session has 10 rows, at least 20"):
        make_folds(*series(9000, session_rows=10), PLAN)
    make_folds(*series(9000, session_rows=30), PLAN)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_longest_session(steps, data):
    session = np.cumsum(np.array(steps) == 3).astype(np.int32)
    a = data.draw(st.integers(0, len(steps) - 1))
    b = data.draw(st.integers(a + 1, len(steps)))
    assume(b > a)
    assert longest_session(session, (a, b)) == np.bincount(session[a:b]).max()
