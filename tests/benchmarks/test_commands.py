"""The benchmarks' command lines where something is missing: one line, exit 2, and nothing is started."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import gemms, gpu
from benchmarks.peers import __main__ as peers
from benchmarks.peers import contest

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
    assert ran == ["kernels", "tests", "seed", "small"] and "peers    not installed: skipped" in capsys.readouterr().out
    installed("torch")
    assert gpu.main(["--out", str(tmp_path), "--only", "peers"]) == 0
    assert ran[-1] == "peers"
    monkeypatch.setattr(gpu, "run", lambda name, out: (int(name == "tests"), 1.0))
    assert gpu.main(["--out", str(tmp_path)]) == 1


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
