"""`python -m trainer bench`: its figures are those of real steps, and nothing stays patched afterwards."""

import json
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import structlog

from tests.recipes.test_alpha_rl import TINY
from trainer import __main__, bench
from trainer.config import build_config, load_config, with_overrides
from trainer.device import NumpyDevice, source
from trainer.device.timing import Stopwatch

STEPS = 17


@pytest.fixture(scope="module")
def cfg():
    learn = TINY["learn"] | {"frozen": ["rollout_len"]}  # 16 rows: any 17 steps see the end of one
    return build_config(TINY | {"learn": learn, "run": {"device": "cpu"}})


@pytest.fixture(scope="module")
def figures(cfg):
    return bench.measure(cfg, STEPS)


@pytest.fixture
def warm(cfg):
    recipe = bench.make_recipe(cfg)
    bench.warm_up(recipe, 2)
    return recipe


def test_rates_are_of_the_same_steps(figures, cfg):
    assert figures["env_steps_per_s"] == pytest.approx(figures["steps_per_s"] * cfg.env.n_backtests)
    assert figures["updates_per_s"] == figures["steps_per_s"] > 0
    assert figures["step_ms"] == pytest.approx(1e3 / figures["steps_per_s"])


def test_every_region_of_a_step_is_there(figures):
    regions = figures["regions"]
    assert set(regions) == {"collect_and_learn", "rollout_end"}
    assert regions["collect_and_learn"]["calls_per_step"] == 1
    assert 0 < regions["rollout_end"]["calls_per_step"] < 0.5
    assert all(row["ms_per_call"] > 0 for row in regions.values())


def test_operations_have_their_region_and_branch_and_sum_up(figures):
    rows = figures["operations"]
    keys = {(row["region"], row["branch"], row["operation"]) for row in rows}
    assert len(keys) == len(rows)
    assert ("collect_and_learn", "collect", "env_step") in keys and ("collect_and_learn", "", "adam_arena") in keys
    assert ("collect_and_learn", "learn", "c51_loss") in keys and ("rollout_end", "", "gae") in keys
    gemm = sum(row["ms"] for row in rows if row["operation"].startswith("gemm"))
    assert sum(row["ms"] for row in rows) == pytest.approx(figures["operations_ms"])
    assert gemm == pytest.approx(figures["gemm_ms"]) and 0 < figures["gemm_share_of_operations"] < 1
    assert figures["gemm_share_of_step"] == pytest.approx(gemm / figures["step_ms"])


def test_totals_by_kernel_and_by_product_keep_every_millisecond(figures):
    kernels, products = bench.by_kernel(figures["operations"]), bench.by_product(figures["operations"])
    assert sum(row["ms"] for row in kernels) == pytest.approx(figures["operations_ms"])
    assert sum(row["share"] for row in kernels) == pytest.approx(1)
    branches = {row["branch"] or "else" for row in figures["operations"]}
    for row in kernels:
        assert sum(row[branch] for branch in branches if branch in row) == pytest.approx(row["ms"])
    assert sum(row["ms"] for row in products) == pytest.approx(figures["gemm_ms"])
    calls = next(row["calls"] for row in kernels if row["kernel"] == "gemm")
    assert calls == sum(row["calls"] for row in products)


def test_the_rate_of_a_product_counts_its_work():
    rows = [{"region": "r", "branch": b, "operation": "gemm 100x200x50 tb", "calls": 2.0, "ms": 1.0} for b in "ab"]
    (row,) = bench.by_product(rows)
    assert row["calls"] == 4 and row["tflops"] == pytest.approx(4 * 2 * 100 * 200 * 50 / 2e-3 / 1e12)


def test_products_of_one_shape_that_are_not_the_same_are_told_apart():
    a, b, out = np.ones((3, 5)), np.ones((5, 2)), np.empty((3, 2))
    asked = {
        "gemm 3x2x5": ((a, b), {}),
        "gemm 3x2x5 ta add": ((a.T, b), {"ta": True, "beta": 1.0}),
        "gemm 3x2x5 tb bias": ((a, b.T), {"tb": True, "bias": out[0]}),
    }
    assert [bench._label("gemm", (*values, out), options) for values, options in asked.values()] == list(asked)
    rows = [{"region": "r", "branch": "b", "operation": label, "calls": 1.0, "ms": 1.0} for label in asked]
    assert len(bench.by_product(rows)) == 3


def test_memory_start_and_checkpoint_are_measured(figures):
    memory, start = figures["memory_mib"], figures["start"]["warm"]
    assert memory["arenas"]["replay"] > 0 and memory["host_peak"] > sum(memory["arenas"].values())
    assert list(memory["arenas"].values()) == sorted(memory["arenas"].values(), reverse=True)
    assert 0 < start["imported_s"] < start["allocated_s"] < start["first_captured_step_s"]
    assert figures["checkpoint_stall_ms"] > 0 and figures["checkpoint_mib"] > 0


def test_traced_steps_are_real_ones_and_leave_nothing_behind(cfg, warm):
    plain = bench.make_recipe(cfg)
    bench.warm_up(plain, 2)
    steps = bench.TRACE_WARMUP + 3
    bench._operations(warm, 3, 1.0)
    bench._regions(warm, 2)
    for _ in range(steps + 2):
        plain.step()
    assert warm.step_count == plain.step_count
    ours, theirs = warm.snapshot(), plain.snapshot()
    assert [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()] == []
    assert not set(vars(warm.device)) & {*bench.OPERATIONS, "branch"}


def test_an_operation_is_charged_its_own_time():
    device = NumpyDevice()
    tracer = bench.Tracer(device)
    a, b, out = np.ones((3, 5)), np.ones((5, 2)), np.empty((3, 2))

    def body():
        with device.branch("slow"):
            device.gemm(a, b, out)
        device.zero(out)

    kept, device.gemm = device.gemm, lambda *values, **options: (time.sleep(0.05), kept(*values, **options))
    tracer.run(device.region(body, "both"))
    del device.gemm
    slow, fast = tracer.ms["both", "slow", "gemm 3x2x5"], tracer.ms["both", "", "zero"]
    assert slow >= 50 > fast > 0


def test_a_failing_region_leaves_the_device_as_it_was():
    device = NumpyDevice()
    with pytest.raises(ZeroDivisionError):
        bench.Tracer(device).run(device.region(lambda: 1 / 0, "broken"))
    assert not set(vars(device)) & {*bench.OPERATIONS, "branch"}


def test_a_child_that_fails_is_an_error_with_its_words(cfg):
    with pytest.raises(bench.FoxhuntError, match="ended with 1"):
        bench.start(cfg.model_copy(update={"run": None}))


def test_the_host_clock_counts_milliseconds():
    watch = Stopwatch()
    first = watch.mark()
    time.sleep(0.01)
    assert watch.ms(first, watch.mark()) >= 10


def test_json_and_table_show_the_same(figures, cfg, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "measure", lambda *_: figures)
    bench.bench(cfg, STEPS, as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(figures))
    bench.bench(cfg, STEPS, as_json=False, out=tmp_path / "new" / "figures.json")
    assert json.loads((tmp_path / "new" / "figures.json").read_text()) == json.loads(json.dumps(figures))
    shown = capsys.readouterr().out
    for words in ("gemm_share_of_step", "memory by arena", "rollout_end", "mamba2_last_bwd", "matrix products"):
        assert words in shown
    assert "start.warm.first_captured_step_s" in shown


def test_what_a_seed_size_step_launches_is_known_without_running_it():
    found = bench.launches(load_config("seed"))
    kernels = {kernel for kernel, _ in found}
    assert {"mamba2_mixer_bwd", "env_step", "gae", "eval_record"} <= kernels
    assert found["env_step", "env_step"]["grid"] == str(1024 // int(found["env_step", "env_step"]["block"]))
    assert found["mamba2_mixer_bwd", "mamba2_mixer_bwd"]["dynamic"] > 48 << 10  # more than a block gets without asking


def test_kernels_table_joins_what_is_compiled_and_what_is_launched(monkeypatch, capsys):
    rows = [source.Resources("gae", "gae", 56, 0, 0, 0, 256), source.Resources("unused", "unused", 8, 0, 0, 0, 0)]
    fake_compiler(monkeypatch, rows)
    assert __main__.main(["bench", "--kernels", "--json"]) == 0
    used, unused = json.loads(capsys.readouterr().out)
    assert (used["registers"], used["shared"]) == (56, 256) and "grid" in used and "grid" not in unused
    assert __main__.main(["bench", "--arch", "sm_80"]) == 0, "--arch implies --kernels"
    shown = capsys.readouterr().out
    assert "kernels for sm_80, launched as by cpu-demo" in shown and used["block"] in shown
    assert "sm_80 has 163 KiB of shared memory for a block: enough for every launch" in shown


def fake_compiler(monkeypatch, rows):
    """NVRTC as it would report `rows`, for the architectures of version 13.2."""
    compiler = SimpleNamespace(getVersion=lambda: (13, 2), getSupportedArchs=lambda: (75, 80, 90, 107))
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda, cuda.nvrtc = cuda, compiler
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(source, "all_kernels", lambda: rows)
    monkeypatch.setattr(source, "resources", lambda row, arch: [row])


def test_what_exceeds_a_card_is_marked_and_what_runs_instead_is_named(monkeypatch, capsys):
    names = "mamba2_mixer_bwd", "mamba2_mixer_bwd_any"
    rows = [source.Resources(names[0], name, 64, 0, 0, 0, 0) for name in names]
    fake_compiler(monkeypatch, rows)
    words = ["bench", "--kernels", "--config", "seed", "--arch"]
    assert __main__.main([*words, "sm_80", "--json"]) == 0
    assert [row["use"] for row in json.loads(capsys.readouterr().out)] == ["exceeds", "launched"]
    assert __main__.main([*words, "sm_80"]) == 0
    shown = capsys.readouterr().out
    assert "exceeds" in shown and "mamba2_mixer_bwd asks for 200.6 KiB; mamba2_mixer_bwd_any runs" in shown
    assert __main__.main([*words, "sm_90"]) == 0
    assert "227 KiB of shared memory for a block: enough for every launch" in capsys.readouterr().out
    assert __main__.main([*words, "sm_107"]) == 0
    assert "is not known here" in capsys.readouterr().out


def test_a_kernel_without_a_variant_that_fits_can_not_run():
    row = {"kernel": "greedy", "entry": "greedy", "dynamic": 200 << 10, "use": "exceeds"}
    assert bench.verdict([row], "sm_86").endswith("greedy asks for 200.0 KiB; it can't run: take a smaller net")


@pytest.mark.parametrize("arch", ["h100", "sm_75", "sm_91", "compute_90", "90"])
def test_an_architecture_that_the_compiler_does_not_know_is_exit_2_with_those_it_does(monkeypatch, capsys, arch):
    fake_compiler(monkeypatch, [])
    assert __main__.main(["bench", "--kernels", "--arch", arch]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --arch {arch}: ") and "NVRTC 13.2" in said
    assert said.endswith("choose one of sm_80, sm_90, sm_107\n")


def test_an_unknown_device_is_named_with_the_choices(capsys):
    assert __main__.main(["bench", "--device", "gpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --device gpu: unknown device\nchoose auto") and "cpu or cuda" in said


def test_what_is_timed_and_where_is_said_first(monkeypatch):
    monkeypatch.setattr(bench.probe, "why_unavailable", lambda: "no card")
    cfg = load_config("seed")
    with structlog.testing.capture_logs() as lines:
        bench.announce(NumpyDevice(), cfg, 200)
        bench.announce(NumpyDevice(), with_overrides(cfg, ["run.device=cpu"]), 200)
    first, second = lines
    assert (first["config"], first["device"], first["no_gpu"], first["d_model"]) == ("seed", "cpu", "no card", 256)
    assert "no_gpu" not in second


@pytest.mark.parametrize("stop", [KeyboardInterrupt, __main__._Terminated])
def test_an_interrupted_timing_does_not_say_that_something_was_kept(monkeypatch, capsys, stop):
    def interrupted(*_):
        raise stop

    monkeypatch.setattr(bench, "bench", interrupted)
    assert __main__.main(["bench"]) == 75
    said = capsys.readouterr().err
    assert said.startswith("error: interrupted before the figures were there") and "kept" not in said


def test_kernels_without_a_compiler_is_one_line_with_exit_2(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert __main__.main(["bench", "--kernels"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: CUDA's compiler NVRTC does not load") and said.count("\n") == 1
    assert "pip install" in said
