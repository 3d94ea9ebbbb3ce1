"""Tiny settings and worlds that tests of several stages share."""

from typing import Any

from trainer.config import StudyConfig, build_config, load_config
from trainer.data.folds import Fold, FoldPlan, make_folds
from trainer.data.market import Market, synthetic_market

# Of the whole step, small enough for a float64 oracle beside it.
STEP: dict[str, Any] = {
    "data": {"label_rows": 5},
    "folds": {"folds": 1},
    "env": {"n_backtests": 16, "episode_len": 12, "drawdown_ticks": 6.0},
    "net": {"d_model": 8, "layers": 2, "window": 6, "d_state": 4, "headdim": 8, "hidden": 8, "backbone": 8},
    "learn": {"batch": 16, "per_capacity": 256, "n_step": 3, "rollout_len": 16, "per_alpha": 0.9, "seed": 5},
}

# Sizes at which the bottom of the network is an embedding, and at which the first layer is folded into it, as in all
# profiles for a GPU (decision 0005): d_model is then the least for it, the features' number padded.
STEMS: dict[str, dict[str, Any]] = {"plain": {}, "folded": {"d_model": 64, "headdim": 16}}

# The network of the profile `small`, with few backtests and a small replay so that a step is short. On a GPU it takes
# the kernels for whole windows (32 rows, tensor cores) and a product whose algorithm is pinned; tiny sizes never do.
USERS: dict[str, Any] = {
    "data": {"label_rows": 5},
    "folds": {"folds": 1},
    "env": {"n_backtests": 64, "episode_len": 12},
    "net": load_config("small").net.model_dump(),
    "learn": {"batch": 64, "per_capacity": 1024, "n_step": 3, "rollout_len": 16},
}


def with_stem(sizes: dict[str, Any], stem: str) -> dict[str, Any]:
    return sizes | {"net": sizes["net"] | STEMS[stem]}


def trading_world(sizes: dict[str, Any]) -> tuple[StudyConfig, Market, Fold]:
    """A market with a signal, and a policy with no bias to hold: it trades, and results differ."""
    cfg = build_config(sizes | {"net": sizes["net"] | {"hold_bias": 0.0}})
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    return cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
