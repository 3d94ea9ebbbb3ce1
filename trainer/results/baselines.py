"""Decision rules without learning, run as lanes of the same environment as the policy, on the same rows and costs.

- flat: never trades.
- buy and hold: one small long position, held to the end of each session.
- random: at each decision, with the share of decisions at which the policy ordered, one of the valid position orders,
  each as likely; else hold. So it pays about the policy's costs.
- imbalance: I = (B - A) / (B + A), B and A the sizes on the bid and ask side over the best five levels. I > 0.2: long
  large; I < -0.2: short large; otherwise it keeps what it has. So it holds until the opposite signal. Without sizes
  (bars) I = 0 and it stays flat. The numbers are fixed here, not fitted to any window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.env_step import Action
from kernels.philox import Purpose, counter, uniform
from trainer.env.actions import HOLD, POSITION_ORDERS

BASELINES = ("flat", "random", "buy and hold", "imbalance")
IMBALANCE_LEVELS = 5
IMBALANCE_THRESHOLD = 0.2
_ORDERS = np.array(sorted(POSITION_ORDERS))


def imbalance(bid_sz: np.ndarray, ask_sz: np.ndarray) -> np.ndarray:
    """Depth imbalance in [-1, 1], float64 [N], from sizes int32 [N, LV]; 0 where no size is known."""
    bid = bid_sz[:, :IMBALANCE_LEVELS].sum(axis=1, dtype=np.float64)
    ask = ask_sz[:, :IMBALANCE_LEVELS].sum(axis=1, dtype=np.float64)
    total = bid + ask
    return np.divide(bid - ask, total, out=np.zeros(len(total)), where=total > 0)


def _target_action(target: np.ndarray, position: np.ndarray, small: int, large: int) -> np.ndarray:
    """Action ids [B] that lead from `position` to `target`, lots in {-large, -small, 0, small, large}."""
    by_target = {
        -large: Action.SHORT_LARGE,
        -small: Action.SHORT_SMALL,
        small: Action.LONG_SMALL,
        large: Action.LONG_LARGE,
    }
    action = np.where(position > 0, int(Action.FLAT_FROM_LONG), int(Action.FLAT_FROM_SHORT))  # target 0
    for lots, name in by_target.items():
        action = np.where(target == lots, int(name), action)
    return np.where(target == position, HOLD, action)


def baseline_actions(
    lanes: Sequence[str],
    mask: np.ndarray,
    position: np.ndarray,
    imbalance_now: np.ndarray,
    order_rate: float,
    step: int,
    seed: int,
    lots: tuple[int, int],
) -> np.ndarray:
    """Actions int8 [B] of the lanes (names of BASELINES) at one decision.

    mask uint8 [B, A] of valid actions, position int [B] lots, imbalance_now float [B] of the row seen, order_rate the
    policy's share of ordering decisions in [0, 1], step the decision's number, lots (small, large).
    """
    small, large = lots
    position = np.asarray(position, np.int64)
    names = np.array(lanes)
    target = position.copy()
    target[names == "flat"] = 0
    target[names == "buy and hold"] = small
    rule = names == "imbalance"
    target[rule & (imbalance_now > IMBALANCE_THRESHOLD)] = large
    target[rule & (imbalance_now < -IMBALANCE_THRESHOLD)] = -large
    action = _target_action(target, position, small, large)
    action = np.where(names == "random", _random_orders(mask, order_rate, step, seed), action)
    valid = np.take_along_axis(mask != 0, action[:, None], axis=1)[:, 0]
    return np.where(valid, action, HOLD).astype(np.int8)


def _random_orders(mask: np.ndarray, order_rate: float, step: int, seed: int) -> np.ndarray:
    """A valid position order with probability `order_rate`, else hold; int64 [B]."""
    words = counter(np.array([step]), np.arange(len(mask)), Purpose.BASELINE, seed)
    orders = mask[:, _ORDERS] != 0
    count = orders.sum(axis=1)
    pick = np.minimum((uniform(words[1], np.float64) * count).astype(np.int64), count - 1)
    chosen = (np.cumsum(orders, axis=1) > pick[:, None]).argmax(axis=1)  # the pick-th valid order
    wants = (uniform(words[0], np.float64) < order_rate) & (count > 0)
    return np.where(wants, _ORDERS[chosen], HOLD)
