"""The whole learning step against JAX in float64: drawn rows in, gradient of every tensor and new weights out."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernels.isv import GROUPS, SLOTS
from tests.recipes.step_oracle import HEAD_ROWS, StepOracle
from tests.recipes.tiny import STEP as TINY
from tests.recipes.tiny import with_stem
from trainer.config import StudyConfig, build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice
from trainer.learn import replay
from trainer.recipes.alpha_rl import AlphaRL

# (stem, settings of learning). The oracle's network is the published one, whatever is folded in ours.
VARIANTS = {
    "gradient above the clip": ("plain", {"grad_clip": 0.05}),
    "gradient below the clip": ("plain", {"grad_clip": 50.0}),
    "decaying rates": ("plain", {"lr_decay_steps": 60}),
    "folded stem": ("folded", {"grad_clip": 0.05}),
}
STEPS = 44  # into the third rollout; learning starts with the second
TOLERANCE = 1e-9
FIGURES = ("l_q", "l_pi", "l_v", "l_aux", "entropy", "approx_kl", "clip_frac", "value_mean")


def config(variant: str) -> StudyConfig:
    stem, settings = VARIANTS[variant]
    return build_config(with_stem(TINY, stem) | {"learn": TINY["learn"] | settings})


def learning(variant: str) -> AlphaRL:
    """A run in mid-learning, then moved: no ratio is 1, no gradient zero by symmetry, and priorities are apart."""
    cfg = config(variant)
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    recipe = AlphaRL(NumpyDevice(), cfg, market, fold, real=np.float64)
    for _ in range(STEPS):
        recipe.step()
    assert recipe.boundary.filled < recipe.boundary.length, "the step under test must not end a rollout"
    rng = np.random.default_rng(13)
    for name in ("opt.param", "opt.target"):
        for entry in recipe.net.layout.entries:
            tensor = recipe.net.layout.views(recipe.store[name])[entry.name]
            tensor += rng.normal(0, 0.3, tensor.shape)
    priority = recipe.store["replay.priority"]
    priority *= rng.lognormal(0, 1, priority.shape)
    replay.refresh(recipe.device, recipe.store)
    for i, group in enumerate(GROUPS):  # a rate of its own for each, so that a mix-up shows
        recipe.store["isv"][SLOTS[f"lr_{group}"]] = 1e-3 * (i + 1)
    return recipe


def learn(recipe: AlphaRL) -> SimpleNamespace:
    """One learning step: the state before and after, what it drew, its gradient."""
    s, before = recipe.store, recipe.snapshot()
    recipe.learn_region()
    return SimpleNamespace(
        before=before,
        after=recipe.snapshot(),
        slots=np.array(s["sample.slots"]),
        served=np.array(s["served.index"]),
        grad=np.array(s["opt.grad"]),
        is_weight=np.array(s["sample.is_weight"]),
        priority=np.array(s["sample.priority"]),
    )


def oracle(recipe: AlphaRL, ours: SimpleNamespace) -> StepOracle:
    return StepOracle(recipe, ours.before, ours.slots, ours.served)


def relative(got, want) -> float:
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300))


def tensors_apart(layout, got, want) -> list[str]:
    """Tensors, the heads one by one, whose gradients differ."""
    pairs = {e.name: (layout.views(got)[e.name], layout.views(want)[e.name]) for e in layout.entries}
    a, b = pairs.pop("heads.weight")
    pairs |= {f"heads.{name}": (a[slice(*rows)], b[slice(*rows)]) for name, rows in HEAD_ROWS.items()}
    return [name for name, (x, y) in pairs.items() if not relative(x, y) < TOLERANCE]


@pytest.fixture(scope="module", params=VARIANTS)
def stepped(request):
    recipe = learning(request.param)
    ours = learn(recipe)
    other = oracle(recipe, ours)
    return SimpleNamespace(recipe=recipe, ours=ours, oracle=other, variant=request.param, jax=other.gradient())


def test_the_batch_meets_every_branch(stepped):
    """Else agreement would say little."""
    b, figures = stepped.oracle.batch, stepped.jax[1]
    assert 0 < figures["clip_frac"] < 1
    assert set(b.n_used.tolist()) == {1, 2, 3} and set(b.terminal.tolist()) == {0, 1}
    assert set(b.valid.tolist()) == {0, 1} and len(set(b.aux_label.tolist())) == 3
    assert len(set(b.q_action.tolist())) > 2 and len(set(b.action.tolist())) > 2
    assert b.is_weight.min() < 0.9 and (b.mask.sum(axis=1) > 1).any()


def test_gradient_tensor_by_tensor(stepped):
    want, layout = stepped.jax[0], stepped.recipe.net.layout
    views = layout.views(want)
    assert [e.name for e in layout.entries if not np.linalg.norm(views[e.name]) > 0] == []
    assert tensors_apart(layout, stepped.ours.grad, want) == []
    assert relative(stepped.ours.grad, want) < TOLERANCE  # with the padding of the arena


def test_new_weights_moments_and_target(stepped):
    want = stepped.oracle.step(stepped.jax[0])
    clip = stepped.recipe.cfg.learn.grad_clip
    if stepped.variant != "decaying rates":
        assert (want["grad_norm"] > clip) == (stepped.variant != "gradient below the clip")
    for name in ("opt.param", "opt.m", "opt.v", "opt.target"):
        change = want[name] - stepped.ours.before[name]
        assert np.linalg.norm(change) > 0
        assert relative(stepped.ours.after[name] - stepped.ours.before[name], change) < TOLERANCE, name
    assert int(stepped.ours.after["opt.count"][0]) == int(stepped.ours.before["opt.count"][0]) + 1


def test_figures_on_the_bus(stepped):
    bus, figures = stepped.ours.after["isv"], dict(stepped.jax[1])
    new = stepped.oracle.step(stepped.jax[0])
    figures["grad_norm"] = new["grad_norm"]
    gap = np.linalg.norm(new["opt.param"] - new["opt.target"]) / np.linalg.norm(new["opt.param"])
    for name in (*FIGURES, "grad_norm"):
        assert bus[SLOTS[name]] == pytest.approx(figures[name], rel=TOLERANCE, abs=1e-13), name
    assert bus[SLOTS["target_distance"]] == pytest.approx(gap, rel=TOLERANCE)


def test_importance_weights_and_priorities(stepped):
    ours, b = stepped.ours, stepped.recipe.cfg.env.n_backtests
    np.testing.assert_allclose(ours.is_weight, stepped.oracle.batch.is_weight, rtol=TOLERANCE)
    # Masses are integers of 20 fractional bits.
    np.testing.assert_allclose(ours.before["replay.mass"] / 2**20, stepped.oracle.masses(), atol=2**-20)
    want = stepped.jax[1]["priority"]
    np.testing.assert_allclose(ours.priority, want, rtol=TOLERANCE)
    step, capacity = int(ours.before["ring.pushed"][0]), len(ours.before["replay.priority"])
    new = ((step - stepped.recipe.cfg.learn.n_step) * b + np.arange(b)) % capacity
    expected = np.array(ours.before["replay.priority"])
    for slot in set(ours.slots.tolist()):
        expected[slot] = max(want[ours.slots == slot])
    kept = np.setdiff1d(np.arange(capacity), new)
    np.testing.assert_allclose(ours.after["replay.priority"][kept], expected[kept], rtol=TOLERANCE)
    largest = max(float(ours.before["replay.max_priority"][0]), float(want.max()))
    assert ours.after["replay.max_priority"][0] == pytest.approx(largest, rel=TOLERANCE)


@pytest.mark.parametrize("tensor", ["embed.weight", "layers.0.A_log", "cfc.maps.weight", "heads.weight"])
def test_one_entry_a_hundredth_off_is_noticed(stepped, tensor):
    """Planted: the largest entry of one tensor's gradient is scaled by 1.01."""
    layout, spoilt = stepped.recipe.net.layout, stepped.ours.grad.copy()
    view = layout.views(spoilt)[tensor].reshape(-1)
    view[np.abs(view).argmax()] *= 1.01
    assert tensors_apart(layout, spoilt, stepped.jax[0]) != []


@pytest.mark.parametrize("fault", ["weight_q", "epsilon", "tau", "entropy_coef", "is_weight"])
def test_a_wrong_constant_in_the_step_is_noticed(fault):
    """Planted: one setting of the step is another one than the oracle's."""
    recipe = learning("gradient below the clip")
    before = recipe.snapshot()
    if fault in ("tau", "entropy_coef"):
        recipe.store["isv"][SLOTS[fault]] *= 1.1
    elif fault == "is_weight":
        launch = recipe.device.launch

        def unweighted(kernel, *values):
            launch(kernel, *values)
            if kernel.name == "per_sample":
                values[-1].fill(1.0)

        recipe.device.launch = unweighted
    else:
        changed = recipe.cfg.learn.model_copy(update={fault: getattr(recipe.cfg.learn, fault) * 0.1})
        recipe.cfg = recipe.cfg.model_copy(update={"learn": changed})
    ours = learn(recipe)
    recipe.cfg = config("gradient below the clip")
    other = StepOracle(recipe, before, ours.slots, ours.served)
    grad, _ = other.gradient()
    target = other.step(grad)["opt.target"]
    same_gradient = not tensors_apart(recipe.net.layout, ours.grad, grad)
    same_target = relative(ours.after["opt.target"] - before["opt.target"], target - before["opt.target"]) < TOLERANCE
    assert not (same_gradient and same_target)
    assert same_gradient == (fault == "tau")


def test_no_gradient_flows_through_the_target():
    """With the target equal to the online network a leak would show: the gradient is that with everything held."""
    recipe = learning("gradient below the clip")
    recipe.store["opt.target"][...] = recipe.store["opt.param"]
    ours = learn(recipe)
    other, layout = oracle(recipe, ours), recipe.net.layout
    assert tensors_apart(layout, ours.grad, other.gradient()[0]) == []
    leaky, _ = other.gradient(leak=True)
    assert relative(ours.grad, leaky) > 1e-3


def test_another_target_changes_the_q_loss_alone():
    """Perturbed target weights reach the gradient through the target's values only, never the rollout's heads."""
    plain, moved = learning("gradient below the clip"), learning("gradient below the clip")
    target = moved.store["opt.target"]
    target += np.random.default_rng(3).normal(0, 0.2, target.shape)
    a, b = learn(plain), learn(moved)
    layout = plain.net.layout
    heads = [layout.views(x.grad)["heads.weight"] for x in (a, b)]
    for name, rows in HEAD_ROWS.items():
        same = heads[0][slice(*rows)].tobytes() == heads[1][slice(*rows)].tobytes()
        assert same == (name != "q"), name
    assert (a.priority != b.priority).any()
    assert tensors_apart(layout, b.grad, oracle(moved, b).gradient()[0]) == []
