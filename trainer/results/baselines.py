"""Decision rules without learning, run as lanes of the same environment as the policy, on the same rows and costs.

- flat: never trades.
- buy and hold: one small long position, held to the end of each session.
- random: with a fixed probability one of the valid position orders, each as likely; else hold. The probability is such
  that it trades as many lots as the policy did, so it pays about the policy's costs.
- imbalance: I = (B - A) / (B + A), B and A the sizes on the bid and ask side over the best five levels. I > 0.2: long
  large; I < -0.2: short large; otherwise it keeps what it has. So it holds until the opposite signal. Without sizes
  (bars) I = 0 and it stays flat. The numbers are fixed here, not fitted to any window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.env_step import Action
from kernels.philox import Purpose, counter, uniform
from trainer.config import EnvConfig
from trainer.env.actions import HOLD, POSITION_ORDERS, target_table

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

    mask uint8 [B, A] of valid actions, position int [B] lots, imbalance_now float [B] of the row seen, order_rate from
    `random_order_rate`, step the decision's number, lots (small, large).
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


def random_order_rate(lots_traded: int, decisions: int, env: EnvConfig) -> float:
    """Share of decisions, 0 to 1, at which `random` has to order to trade `lots_traded` lots in `decisions` decisions.

    Its positions are a Markov chain; the lots of an order are those expected in its stationary state.
    """
    targets = target_table(env)
    states = sorted({0, *targets[_ORDERS].tolist()})
    chain = np.zeros((len(states), len(states)))
    lots = np.zeros(len(states))
    for i, position in enumerate(states):
        reached = [int(targets[a]) for a in _ORDERS if _makes_sense(Action(a), position, int(targets[a]), env)]
        for target in reached:
            chain[i, states.index(target)] += 1.0 / len(reached)
            lots[i] += abs(target - position) / len(reached)
    share = np.linalg.matrix_power(chain, 256)[states.index(0)]
    expected = float(share @ lots)
    return min(1.0, lots_traded / max(decisions, 1) / expected)


def _makes_sense(action: Action, position: int, target: int, env: EnvConfig) -> bool:
    """Whether a position order is valid at `position` with none on its way."""
    only_at = {
        Action.FLAT_FROM_LONG: position > 0,
        Action.FLAT_FROM_SHORT: position < 0,
        Action.HALF_FLAT_LONG: position == env.lots_large,
        Action.HALF_FLAT_SHORT: position == -env.lots_large,
    }
    return target != position and only_at.get(action, True)
