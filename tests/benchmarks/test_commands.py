"""The benchmarks' command lines where something is missing: one line, exit 2, and nothing is started."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gemms, gpu
from benchmarks.peers import __main__ as peers
from benchmarks.peers import contest
from trainer.config import load_config

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(monkeypatch):
    """Says which packages can be found, and that a GPU can be used."""

    def only(*names):
        monkeypatch.setattr(contest, "find_spec", lambda name: name if name in names else None)

    for module in (peers, gpu, gemms):
        monkeypatch.setattr(module, "why_unavailable", lambda: None)
    monkeypatch.setattr(contest, "Contest", lambda *_: pytest.fail("a contest was made"))
    return only


def said(capsys):
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    return text


def test_a_peer_that_is_not_installed_is_one_line_with_exit_2(installed, capsys):
    installed("jax", "jax_cuda13_plugin")
    assert peers.main(["--peer", "torch:default"]) == 2
    text = said(capsys)
    assert text.startswith("error: --peer torch:default: torch is not installed; pip install") and text.count("\n") == 1


def test_jax_for_processors_only_is_no_peer_on_a_gpu(installed, capsys):
    installed("jax")
    assert peers.main(["--peer", "jax"]) == 2
    assert "jax is installed without its CUDA plugin" in said(capsys)
    assert contest.missing("jax", "cpu") == ""


def test_those_that_are_missing_are_skipped_unless_asked_for(installed, capsys):
    installed("torch")
    assert peers.chosen_peers(None, "cuda") == ["torch:default", "torch:folded"]
    said_of = "{}: not installed: skipped (jax is not installed)\n"
    assert capsys.readouterr().out == said_of.format("jax") + said_of.format("jax:folded")
    installed()
    assert peers.main([]) == 2
    assert "no peer to measure against: torch is not installed, jax is not installed; pip" in said(capsys)


def test_a_misspelt_profile_shows_the_nearest(installed, capsys):
    installed("torch")
    for main, words in ((peers.main, ["--profile", "sede"]), (gemms.main, ["sede"])):
        assert main(words) == 2
        assert "config 'sede': no such profile or file (did you mean 'seed'?)" in said(capsys)


def test_without_a_gpu_the_reason_is_one_line_with_exit_2(installed, capsys, monkeypatch):
    installed("torch")
    for module in (peers, gpu, gemms):
        monkeypatch.setattr(module, "why_unavailable", lambda: "no card here")
    for main, words in ((peers.main, []), (gemms.main, ["seed"]), (gpu.main, [])):
        assert main(words) == 2
        text = said(capsys)
        assert "no card here" in text and text.count("\n") == 1


def test_all_of_a_gpu_leaves_out_peers_that_are_not_installed_and_does_not_fail(
    installed, capsys, monkeypatch, tmp_path
):
    installed("jax")
    ran = []
    monkeypatch.setattr(gpu, "run", lambda name, out: ran.append(name) or (0, 1.0))
    assert gpu.main(["--out", str(tmp_path)]) == 0
    assert ran == ["kernels", "tests", "seed", "small", "fold"]
    assert "peers    not installed: skipped" in capsys.readouterr().out
    installed("torch")
    assert gpu.main(["--out", str(tmp_path), "--only", "peers"]) == 0
    assert ran[-1] == "peers"
    monkeypatch.setattr(gpu, "run", lambda name, out: (int(name == "tests"), 1.0))
    assert gpu.main(["--out", str(tmp_path)]) == 1


def test_a_contestant_that_died_after_its_last_answer_is_left_out_and_named():
    one = contest.Contestant("torch:default", "cpu-demo", "cpu", False, "")
    try:
        assert one.process.is_alive()
        one.process.kill()
        one.process.join()
        one.tell("run", 5)
        assert one.hear() is None and one.error == "the process ended with -9"
        one.tell("run", 5)
        assert one.ask("metrics") is None
    finally:
        one.end()
    figures = contest._figures([SimpleNamespace(kind="foxhunt", rates=[2.0], error="", figures={}), one])
    assert figures["contestants"]["torch:default"] == {"error": one.error}


FIGURES = {
    "seed": {
        "steps_per_s": 310.0,
        "checkpoint_stall_ms": 1.5,
        "start": {"warm": {"first_captured_step_s": 2.4}, "cold": {"first_captured_step_s": 30.0}},
    },
    "small": {"steps_per_s": 250.0},
    "fold": {"train_s": 98.0},
    "peers": [
        {"profile": "small", "contestants": {"foxhunt": {"ratio": 1.0}, "torch:default": {"ratio": 1.5}}},
        {
            "profile": "seed",
            "contestants": {
                "foxhunt": {"ratio": 1.0},
                "torch:default": {"ratio": 4.5},
                "torch:folded": {"ratio": 4.2},
                "torch:max-autotune-aten": {"error": "killed"},
                "jax": {"ratio": 1.9},
            },
        },
    ],
}
CLOSING = {
    "seed size, steps/s": "310.00 150 300 aim reached",
    "small size, steps/s": "250.00 300 1000 floor missed",
    "seed size over the best PyTorch peer": "4.20 2 4 aim reached",
    "training stalled by a checkpoint, ms": "1.50 5 1 floor reached, aim missed",
    "a fold of 25,000 steps, judged, s": "98.00 170 85 floor reached, aim missed",
    "start to the first captured step, s": "2.40 20 8 aim reached",
}


def test_all_of_a_gpu_ends_with_its_figures_beside_floors_and_aims(installed, capsys, monkeypatch, tmp_path):
    def writes(name, out):
        if name in FIGURES:
            (out / f"{name}.json").write_text(json.dumps(FIGURES[name]))
        return 0, 1.0

    installed("torch")
    monkeypatch.setattr(gpu, "run", writes)
    assert gpu.main(["--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()[-len(CLOSING) :]
    assert [" ".join(line.split()) for line in shown] == [f"{what} {rest}" for what, rest in CLOSING.items()]
    monkeypatch.setattr(gpu, "run", lambda name, out: (0, 1.0))  # measures nothing; the files are still there
    assert gpu.main(["--out", str(tmp_path), "--only", "small"]) == 0
    shown = capsys.readouterr().out.splitlines()[-len(CLOSING) :]
    assert [line.endswith("not measured") for line in shown] == [True, False, True, True, True, True]
    assert gpu.over_torch(FIGURES["peers"][:1]) is None, "of the other size"


def test_a_part_runs_its_commands_until_one_fails(monkeypatch, tmp_path, capsys):
    python = "import sys; print('said', sys.argv[1]); sys.exit(int(sys.argv[1]))"
    (tmp_path / "told.py").write_text(python)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "commands", lambda name, out, runs: [["told", "0"], ["told", "3"], ["told", "0"]])
    (tmp_path / "fold.json").write_text("{}")
    code, seconds = gpu.run("fold", tmp_path)
    assert code == 3 and seconds > 0 and not (tmp_path / "fold.json").exists(), "an earlier figure would pass as new"
    assert (tmp_path / "fold.txt").read_text() == "said 0\nsaid 3\n"
    shown = capsys.readouterr().out
    assert "== fold: told 3" in shown and "said 3" in shown and " s\n" in shown
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [], "runs are left behind"


def test_a_fold_goes_through_the_command_line(monkeypatch, tmp_path):
    """The same two commands at the size of the demo, a few steps on a processor."""
    instead, whole = {"seed": "cpu-demo", "cuda": "cpu", gpu.DATA: "synthetic:rows=4000"}, gpu.commands
    monkeypatch.setattr(gpu, "FOLD_STEPS", 40)
    monkeypatch.setattr(gpu, "commands", lambda *given: [[instead.get(w, w) for w in words] for words in whole(*given)])
    code, _ = gpu.run("fold", tmp_path)
    said = (tmp_path / "fold.txt").read_text()
    assert code == 0 and "judged" in said and '"step": 40' in said, said
    assert 0 < json.loads((tmp_path / "fold.json").read_text())["train_s"] < 60


def test_kernels_are_compiled_for_the_card_itself(monkeypatch, tmp_path):
    runtime = SimpleNamespace(getDeviceProperties=lambda _: {"major": 12, "minor": 1})
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    (words,) = gpu.commands("kernels", tmp_path, tmp_path)
    assert words[-2:] == ["--arch", "sm_121"]


@pytest.mark.parametrize("name", ["seed", "small", "peers"])
def test_what_measures_also_writes_its_figures(name, tmp_path):
    (words,) = gpu.commands(name, tmp_path, tmp_path)
    assert words[-2:] == ["--out", str(tmp_path / f"{name}.json")]


@pytest.fixture(scope="module")
def wanted():
    """Products of the profiles that are for a GPU, known without one."""
    return {name: gemms.products(load_config(name)) for name in ("seed", "small")}


def test_products_of_a_profile_are_known_without_a_gpu(wanted):
    assert {str(p).partition("x")[0] for p in wanted["seed"]} >= {"131072", "1024"}, "one pass over 3M + B windows"
    assert {p.n for p in wanted["seed"]} != {p.n for p in wanted["small"]}
    assert any(p.tb for p in wanted["small"]) and all(p.align == gemms.ALIGN for p in wanted["small"])


def test_pruning_drops_what_no_named_profile_asks_for_and_needs_no_gpu(wanted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gemms, "why_unavailable", lambda: pytest.fail("a GPU was looked for"))
    monkeypatch.setattr(gemms, "TABLES", tmp_path)
    monkeypatch.setattr(gemms, "products", lambda cfg: wanted[cfg.profile])
    only = {name: str(min(wanted[name] - wanted[other])) for name, other in (("seed", "small"), ("small", "seed"))}
    table, rest = tmp_path / "sm90-cublaslt1.json", {"algorithm": "00", "us": 1.0, "first_us": 2.0}
    gemms.write(table, {name: rest for name in (*only.values(), "3x4x5 tb")})
    assert gemms.main(["--prune", "seed", "small"]) == 0
    assert set(gemms.read(table)) == set(only.values())
    assert "1 of 3 products dropped\n  3x4x5 tb\n" in capsys.readouterr().out
    assert gemms.main(["--prune", "small"]) == 0
    assert list(gemms.read(table)) == [only["small"]]


def test_timing_keeps_what_other_profiles_ask_for_and_says_so(wanted, monkeypatch, tmp_path, capsys):
    table, entry = tmp_path / "sm90-cublaslt1.json", {"algorithm": "00", "us": 1.0, "first_us": 2.0}
    first, *_ = sorted(wanted["small"])
    gemms.write(table, {"3x4x5 tb": entry, str(first): entry})
    monkeypatch.setattr(gemms, "CudaDevice", lambda **_: SimpleNamespace(gemms=SimpleNamespace(table=table)))
    monkeypatch.setattr(gemms, "entries", lambda device, found: [(str(first), entry | {"us": 0.5})])
    gemms.pin(wanted["small"])
    assert gemms.read(table) == {"3x4x5 tb": entry, str(first): entry | {"us": 0.5}}
    assert "do not ask for them (--prune drops them): 3x4x5 tb\n" in capsys.readouterr().out


def test_the_tables_hold_no_product_that_no_step_asks_for(wanted):
    for table in gemms.TABLES.glob("*.json"):
        left = gemms.unused(gemms.read(table), wanted["seed"] | wanted["small"])
        assert not left, f"{table.name}: {left}: python -m benchmarks.gemms --prune seed small"


class Warming:
    """A peer whose graphs are all there after so many steps."""

    def __init__(self, needs):
        self.needs, self.steps = needs, 0

    def run(self, steps):
        self.steps += steps

    def ready(self):
        return self.steps >= self.needs


@pytest.mark.parametrize("needs, steps", [(0, contest.PEER_WARMUP), (66, 66)])
def test_a_peer_is_warm_once_all_its_graphs_exist(needs, steps):
    peer = Warming(needs)
    contest.warm_up(peer)
    assert peer.steps == steps


def test_a_peer_that_never_gets_there_is_a_fault():
    with pytest.raises(RuntimeError, match="not all graphs are there after 5040 steps"):
        contest.warm_up(Warming(10**9))


@pytest.mark.parametrize("extra", ["gpu", "gpu-cu12"])
def test_the_libraries_of_make_gpu_can_be_chosen(extra):
    words = ["make", "-n", "gpu", *([] if extra == "gpu" else [f"GPU_EXTRA={extra}"])]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True)
    assert f"pip install -q -e '.[{extra}]'" in done.stdout, done.stderr
