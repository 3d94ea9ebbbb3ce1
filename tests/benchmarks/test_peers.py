"""The PyTorch and JAX peers of the training step do foxhunt's step: the same losses, weights, trades and memory.

A run of foxhunt in the middle of learning is handed over; then both take one step with the same random draws.
"""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import step, weights
from benchmarks.peers.contest import AGREED, handed_over
from kernels.isv import METRICS, OUTPUTS, SIGNALS, SLOTS
from kernels.philox import Purpose, counter, uniform
from tests.recipes.tiny import STEP as TINY
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice
from trainer.recipes.alpha_rl import AlphaRL

STEPS = 45  # into the third rollout; learning starts with the second
TOLERANCE = 1e-5
STEM = ("embed.weight", "embed.bias", "layers.0.norm.weight", "layers.0.in_proj.weight", "layers.0.out_proj.weight")
PLAIN_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
NO_TORCH = importlib.util.find_spec("torch") is None


def no_cuda() -> bool:
    import torch

    return not torch.cuda.is_available()


TORCH = pytest.mark.skipif(NO_TORCH, reason="torch is not installed")
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(NO_TORCH or no_cuda(), reason="torch sees no GPU")]
FRAMEWORKS = ["jax", pytest.param("torch", marks=TORCH), pytest.param("torch compiled", marks=ON_GPU)]
FOLDED = ["jax:folded", pytest.param("torch:folded", marks=TORCH), pytest.param("torch compiled:folded", marks=ON_GPU)]


def learning() -> AlphaRL:
    """A run in the middle of learning, its weights moved apart so that no ratio is 1 and no priority like another."""
    cfg = build_config(TINY)
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    recipe = AlphaRL(NumpyDevice(), cfg, market, fold)
    for _ in range(STEPS):
        recipe.step()
    rng = np.random.default_rng(13)
    for name in ("opt.param", "opt.target"):
        for entry in recipe.net.layout.entries:
            tensor = recipe.net.layout.views(recipe.store[name])[entry.name]
            tensor += rng.normal(0, 0.3, tensor.shape).astype(np.float32) * (tensor != 0)
    return recipe


def draws_of(recipe: AlphaRL, before: dict) -> tuple[np.ndarray, ...]:
    """What foxhunt's counters give at this step, as numbers in [0, 1): acting, starts, replay."""
    cfg, step = recipe.cfg, before["clock.step"]
    lanes, draws = (np.arange(n, dtype=np.uint32) for n in (cfg.env.n_backtests, cfg.learn.batch))
    acting = uniform(counter(step, lanes, Purpose.ACTION, cfg.learn.seed)[0])
    starts = counter(step, lanes, Purpose.RESET, cfg.learn.seed)[0] / 2.0**32
    words = counter(step, draws, Purpose.REPLAY, cfg.learn.seed)
    edges = np.arange(len(draws) + 1) * int(before["replay.mass"].sum(dtype=np.int64)) // len(draws)
    span = np.diff(edges).astype(np.uint64)
    replay = (((words[0].astype(np.uint64) << np.uint64(32)) | words[1]) % span + 0.5) / span
    return acting, starts, replay


@pytest.fixture(scope="module")
def foxhunt():
    """The state before a learning step, and after it what it drew, measured and left behind."""
    recipe = learning()
    before = handed_over(recipe)
    draws = draws_of(recipe, before)
    recipe.learn_region()
    after = handed_over(recipe)
    drawn = SimpleNamespace(slots=np.array(recipe.store["sample.slots"]), index=np.array(recipe.store["served.index"]))
    recipe.boundary_region()
    return SimpleNamespace(
        cfg=recipe.cfg,
        layout=recipe.net.layout,
        before=before,
        after=after,
        end=handed_over(recipe),
        draws=draws,
        drawn=drawn,
    )


def make(name: str, foxhunt, arrays=None):
    arrays = foxhunt.before if arrays is None else arrays
    name, _, folded = name.partition(":")
    if name == "jax":
        from benchmarks.peers.jax_peer import JaxPeer

        return JaxPeer(foxhunt.cfg, arrays, tf32=False, options=PLAIN_COMPILE, folded=bool(folded))
    from benchmarks.peers.torch_peer import TorchPeer

    device, mode = ("cuda", "default") if name == "torch compiled" else ("cpu", None)
    return TorchPeer(foxhunt.cfg, arrays, device, tf32=False, mode=mode, folded=bool(folded))


@pytest.fixture(scope="module")
def stepped(foxhunt):
    """A peer by name, each made once: its figures on foxhunt's batch before the step; and what it has after it."""
    made = {}

    def of(name: str) -> SimpleNamespace:
        if name not in made:
            run = make(name, foxhunt)
            figures = run.losses(foxhunt.drawn.slots, foxhunt.drawn.index)
            run.step_with(foxhunt.draws)
            made[name] = SimpleNamespace(run=run, name=name, figures=figures, after=run.arrays())
        return made[name]

    return of


@pytest.fixture(scope="module", params=[*FRAMEWORKS, *FOLDED])
def peer(request, stepped):
    return stepped(request.param)


def relative(got, want) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))


def test_weights_survive_the_way_there_and_back(foxhunt):
    flat = foxhunt.before["opt.param"]
    assert weights.join(foxhunt.layout, weights.split(foxhunt.layout, flat)).tobytes() == flat.tobytes()


def test_the_peer_has_as_many_parameters(peer, foxhunt):
    tensors = weights.split(foxhunt.layout, foxhunt.before["opt.param"])
    real = weights.join(foxhunt.layout, {name: np.ones_like(x) for name, x in tensors.items()})
    assert peer.run.parameters() == real.sum()
    padding = foxhunt.after["opt.v"][real == 0]
    assert padding.size and not padding.any(), "what the peer leaves out is a parameter that learns"


@pytest.mark.parametrize("name", AGREED)
def test_losses_on_one_batch(peer, foxhunt, name):
    want = float(foxhunt.after["isv"][SLOTS[name]])
    assert want != 0
    assert peer.figures[name] == pytest.approx(want, rel=TOLERANCE, abs=1e-7)


def test_new_weights_moments_and_target(peer, foxhunt):
    for name in ("opt.m", "opt.v", "opt.param", "opt.target"):
        change = foxhunt.after[name] - foxhunt.before[name]
        assert np.linalg.norm(change) > 0
        assert relative(peer.after[name] - foxhunt.before[name], change) < 1e-3, name


@pytest.mark.parametrize("name", FOLDED)
def test_the_folded_stem_is_the_plain_one(stepped, foxhunt, name):
    folded, plain = stepped(name), stepped(name.partition(":")[0])
    assert folded.figures == pytest.approx(plain.figures, rel=TOLERANCE, abs=1e-7)
    for array in ("opt.param", "opt.m"):
        views = [foxhunt.layout.views(x) for x in (folded.after[array], plain.after[array], foxhunt.before[array])]
        for tensor in STEM:
            got, want, before = (view[tensor] for view in views)
            assert relative(want, before) > 1e-5
            assert relative(got, want) < TOLERANCE, (array, tensor)


@pytest.mark.parametrize("name", FOLDED)
def test_the_losses_of_a_folded_peer_come_from_the_pass_that_is_timed(stepped, foxhunt, name, monkeypatch):
    """Planted: what only the other pass is made of breaks, and the figures stay."""
    figures = stepped(name).figures  # made before, if compiled
    monkeypatch.setattr(step, "prepare", None)
    assert make(name, foxhunt).losses(foxhunt.drawn.slots, foxhunt.drawn.index) == pytest.approx(figures, rel=1e-6)


@pytest.mark.parametrize("layers, columns", [(1, 56), (2, 64)])
def test_one_layer_has_no_stem_to_fold(foxhunt, layers, columns):
    """The last mixer has no product over all rows that an embedding could go into."""
    net = foxhunt.cfg.net.model_copy(update={"layers": layers})
    state = step.state_of(foxhunt.cfg.model_copy(update={"net": net}), foxhunt.before, folded=True)
    features = state["market.features"]
    assert features.shape[1] == columns
    assert (features[:, 56:] == [1, *[0] * 7][: columns - 56]).all()
    np.testing.assert_array_equal(features[:, :56], foxhunt.before["market.features"])


def same(got, want, name: str) -> None:
    got = got.reshape(want.shape)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


def shared(peer_arrays, foxhunt_arrays, *prefixes):
    found = [n for n in peer_arrays if n.startswith(prefixes) and n in foxhunt_arrays]
    assert found
    return found


@pytest.mark.parametrize("part", ["env.", "policy.", "rollout.", "ring.", "replay.", "signals.", "clock."])
def test_everything_else_that_a_step_leaves_behind(peer, foxhunt, part):
    for name in shared(peer.after, foxhunt.after, part):
        same(peer.after[name], foxhunt.after[name], name)


@pytest.mark.parametrize("part, names", [("outputs", OUTPUTS), ("signals", SIGNALS), ("metrics", METRICS)])
def test_the_bus(peer, foxhunt, part, names):
    for value, name in zip(peer.after[f"bus.{part}"], names):
        assert value == pytest.approx(foxhunt.after["isv"][SLOTS[name]], rel=1e-4, abs=1e-6), name


def test_the_end_of_a_rollout(peer, foxhunt):
    run = make(peer.name, foxhunt, foxhunt.after)
    run.finish_rollout()
    got, buffer = run.arrays(), 1 - int(foxhunt.end["rollout.active"][0])
    rows = int(foxhunt.end["rollout.length"][buffer])
    for name in ("rollout.advantage", "rollout.returns"):
        ours = got[name].reshape(foxhunt.end[name].shape)
        same(ours[buffer, :rows], foxhunt.end[name][buffer, :rows], name)
    same(got["rollout.length"], foxhunt.end["rollout.length"], "rollout.length")
    served = np.sort(got["rollout.order"][: rows * foxhunt.cfg.env.n_backtests])
    np.testing.assert_array_equal(served, np.arange(len(served)))


@pytest.mark.parametrize("tensor", ["embed.weight", "layers.0.A_log", "layers.1.D", "cfc.maps.weight"])
def test_a_weight_that_is_off_is_noticed(peer, foxhunt, tensor):
    """Planted: one tensor larger by a twentieth."""
    spoilt = foxhunt.before | {"opt.param": foxhunt.before["opt.param"].copy()}
    foxhunt.layout.views(spoilt["opt.param"])[tensor][...] *= 1.05
    peer.run.load(spoilt)
    figures = peer.run.losses(foxhunt.drawn.slots, foxhunt.drawn.index)
    off = [n for n in AGREED if abs(figures[n] / foxhunt.after["isv"][SLOTS[n]] - 1) > TOLERANCE]
    assert off


@pytest.mark.skipif(NO_TORCH, reason="torch is not installed")
def test_products_can_be_left_to_cublas_while_the_rest_is_tuned(foxhunt, monkeypatch):
    import torch._inductor.config as inductor

    from benchmarks.peers import torch_peer

    modes = []
    monkeypatch.setattr(inductor, "max_autotune_gemm_backends", "ATEN,TRITON")
    monkeypatch.setattr(torch_peer.torch, "compile", lambda body, mode, **_: modes.append(mode) or body)
    torch_peer.TorchPeer(foxhunt.cfg, foxhunt.before, "cpu", mode=torch_peer.ATEN)
    assert set(modes) == {"max-autotune-no-cudagraphs"} and inductor.max_autotune_gemm_backends == "ATEN"
