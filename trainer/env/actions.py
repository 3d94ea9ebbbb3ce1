"""The eleven actions: names, the position each one wants, and which of them place a position order."""

from __future__ import annotations

import numpy as np

from kernels.env_step import NO_ORDER, Action
from trainer.config import EnvConfig

NAMES = tuple(action.name.lower().replace("_", "-") for action in Action)
HOLD = int(Action.HOLD)
POSITION_ORDERS = frozenset(int(a) for a in Action) - {Action.HOLD, Action.TRAIL_TIGHTEN, Action.TRAIL_LOOSEN}


def target_table(cfg: EnvConfig) -> np.ndarray:
    """Position wanted by each action, lots, int32 [A]; NO_ORDER for the three that leave the position alone.

    Half-flat keeps lots_large // 2 lots: with an odd number the larger half is closed.
    """
    small, large, half = cfg.lots_small, cfg.lots_large, cfg.lots_large // 2
    wanted = {
        Action.SHORT_LARGE: -large,
        Action.SHORT_SMALL: -small,
        Action.FLAT_FROM_LONG: 0,
        Action.FLAT_FROM_SHORT: 0,
        Action.LONG_SMALL: small,
        Action.LONG_LARGE: large,
        Action.HALF_FLAT_LONG: half,
        Action.HALF_FLAT_SHORT: -half,
    }
    return np.array([wanted.get(a, NO_ORDER) for a in Action], np.int32)
