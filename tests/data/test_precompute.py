"""Stage 1 as a whole: real files and the synthetic market to a cache and a fold list, in bounded memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.conftest import shared_data
from trainer.config import StudyConfig, load_config
from trainer.data.market import market_from_series, open_market
from trainer.data.precompute import precompute, read_folds
from trainer.data.synthetic import SyntheticConfig, SyntheticSeries
from trainer.errors import DataError, UsageError

CFG = load_config("cpu-demo")


def run(tmp_path, data, cfg: StudyConfig = CFG):
    with capture_logs() as logs:
        result = precompute([data], cfg, tmp_path / "cache", tmp_path / "runs" / "r")
    return result, [line["event"] for line in logs]


def test_synthetic(tmp_path):
    result, events = run(tmp_path, "synthetic:rows=9000")
    assert result.rows == 9000 and result.meta.symbol == "SYNTHETIC" and len(result.folds) == 3
    assert result.data_digest == SyntheticSeries(SyntheticConfig(rows=9000)).digest == result.meta.data_digest
    assert events == [f"fxcache miss {result.cache.stem}", "dropped pre-open=0 crossed=0 undefined=0 duplicate=0"]
    market = market_from_series(SyntheticSeries(SyntheticConfig(rows=9000)))
    assert open_market(result.cache).features.tobytes() == market.features.tobytes()
    assert read_folds(tmp_path / "runs" / "r") == result.folds

    again, events = run(tmp_path, "synthetic:rows=9000")
    assert events[0] == f"fxcache hit {result.cache.stem}" and again == result


def test_another_fold_count_hits_the_same_cache(tmp_path):
    first, _ = run(tmp_path, "synthetic:rows=9000")
    other, events = run(tmp_path, "synthetic:rows=9000", load_config("cpu-demo", ["folds.folds=2"]))
    assert other.cache == first.cache and events[0].startswith("fxcache hit") and len(other.folds) == 2


def test_an_hour_of_order_flow(tmp_path):
    path = shared_data("nautilus/databento/esh4-glbx-mdp3-20231225.mbo.dbn.zst")
    result, events = run(tmp_path, path)
    market = open_market(result.cache)
    assert events[1].startswith("dropped pre-open=925 crossed=0 ")
    assert market.meta.symbol == "ESH4" and market.meta.tick_size == "0.25" and market.meta.sampling == "100ms"
    assert [f.label for f in result.folds] == [
        "0 2023-12-25T23:15..23:30",
        "1 2023-12-25T23:30..23:45",
        "2 2023-12-25T23:45..2023-12-26T00:00",
    ]
    assert np.isfinite(market.features).all()
    assert (market.bid_px[:, 0] < market.ask_px[:, 0]).all() and market.features.shape[1] == 56
    mean, std = market.normalisation(result.folds[0].train)
    z = (market.features[slice(*result.folds[0].test)] - mean) / std
    assert (np.abs(z) > 10).mean() < 1e-3  # almost nothing of the next window is clipped


def test_a_month_of_minute_bars(tmp_path):
    path = shared_data("nautilus/xcme/6EH4.XCME_1min_bars_20240101_20240131.csv.gz")
    result, _ = run(tmp_path, path)
    assert 29_000 < result.rows <= 29_996 and len(result.folds) == 3
    market = open_market(result.cache)
    assert market.levels == 1 and np.isfinite(market.features).all()
    assert market.session[-1] >= 20  # a new session after each daily halt


def test_four_minutes_are_too_few_and_the_advice_works(tmp_path):
    path = shared_data("nautilus/databento/futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst")
    with pytest.raises(DataError, match=r"too few rows: 3 folds need at least \d+, the series has 2387") as error:
        run(tmp_path, path)
    assert not (tmp_path / "runs").exists()
    text = str(error.value).replace("--folds ", "--set folds.folds=")
    overrides = [flag.split()[0] for flag in text.split("--set ")[1:]]
    result, events = run(tmp_path, path, load_config("cpu-demo", overrides))
    assert events[0].startswith("fxcache hit") and result.folds


def test_an_unwritable_run_folder_and_a_missing_fold_list(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match=r"folds.json: can't be written: Not a directory\n.*--runs"):
        run(tmp_path, "synthetic:rows=9000")
    with pytest.raises(UsageError, match=r"nowhere/folds.json: no fold list\nrun precompute"):
        read_folds("nowhere")
    (tmp_path / "folds.json").write_text('[{"index": 0}]')
    with pytest.raises(UsageError, match="not a fold list"):
        read_folds(tmp_path)


def test_folds_json_is_a_list_with_dates_and_labels(tmp_path):
    run(tmp_path, "synthetic:rows=9000")
    folder = tmp_path / "runs" / "r"
    tree = json.loads((folder / "folds.json").read_text())
    assert [fold["index"] for fold in tree] == [0, 1, 2]
    assert all(fold["label"].startswith(f"{fold['index']} 2024-01-02T") for fold in tree)
    assert tree[2]["dates"]["test"][1] == "2024-01-02T16:59:59.000000000Z"
    assert [p.name for p in folder.iterdir()] == ["folds.json"]


MEMORY = """
import resource, sys
from trainer.config import load_config
from trainer.data.precompute import precompute
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
cfg = load_config("cpu-demo")
precompute(["synthetic:rows=20000"], cfg, sys.argv[1], sys.argv[1])
before = peak()
for _ in range(2):  # a miss, then a hit
    result = precompute(["synthetic:rows=250000"], cfg, sys.argv[1], sys.argv[1])
print(before, peak(), result.cache.stat().st_size / 2**20)
"""


def test_memory_stays_bounded_whatever_the_length(tmp_path):
    code = [sys.executable, "-c", MEMORY, str(tmp_path)]
    out = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    before, after, size = map(float, out.splitlines()[-1].split())
    assert size > 90  # MiB
    assert after - before < 20
