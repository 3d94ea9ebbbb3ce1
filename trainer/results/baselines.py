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
from kernels.philox import Purpose, counters, uniform
from trainer.config import EnvConfig
from trainer.env.actions import HOLD, POSITION_ORDERS, target_table

BASELINES = ("flat", "random", "buy and hold", "imbalance")
IMBALANCE_LEVELS = 5
IMBALANCE_THRESHOLD = 0.2
KEEP = np.iinfo(np.int64).max  # a target: whatever the position is
BLOCK = 4096  # steps whose random numbers are drawn at once
_ORDERS = np.array(sorted(POSITION_ORDERS))


def imbalance(bid_sz: np.ndarray, ask_sz: np.ndarray) -> np.ndarray:
    """Depth imbalance in [-1, 1], float64 [N], from sizes int32 [N, LV]; 0 where no size is known."""
    bid = bid_sz[:, :IMBALANCE_LEVELS].sum(axis=1, dtype=np.float64)
    ask = ask_sz[:, :IMBALANCE_LEVELS].sum(axis=1, dtype=np.float64)
    total = bid + ask
    return np.divide(bid - ask, total, out=np.zeros(len(total)), where=total > 0)


def _orders_to(small: int, large: int) -> np.ndarray:
    """Action ids [2 large + 1, 2]: from a position to target `t` lots, at row t + large; column 1 for a long one."""
    orders = np.full((2 * large + 1, 2), HOLD)
    for target, action in (
        (-large, Action.SHORT_LARGE),
        (-small, Action.SHORT_SMALL),
        (small, Action.LONG_SMALL),
        (large, Action.LONG_LARGE),
    ):
        orders[target + large] = action
    orders[large] = Action.FLAT_FROM_SHORT, Action.FLAT_FROM_LONG
    return orders


class Rules:
    """The rules of lanes `names` [B] (of BASELINES) over one pass. What no path can change is worked out once.

    signal float64 [V]: imbalance of the market rows from `first_row` on. order_rate: share of decisions in [0, 1] at
    which `random` orders. lots: (small, large).
    """

    def __init__(
        self,
        names: Sequence[str],
        signal: np.ndarray,
        first_row: int,
        order_rate: float,
        seed: int,
        lots: tuple[int, int],
    ):
        small, self.large = lots
        self.first_row, self.order_rate, self.seed = first_row, order_rate, seed
        name = np.array(names)
        self.lanes = np.arange(len(name))
        self.random = np.flatnonzero(name == "random")
        self.follows = name == "imbalance"
        self.fixed = np.select([name == "flat", name == "buy and hold"], [0, small], KEEP)
        rises, falls = signal > IMBALANCE_THRESHOLD, signal < -IMBALANCE_THRESHOLD
        self.aim = np.select([rises, falls], [self.large, -self.large], KEEP)
        self.orders = _orders_to(small, self.large)
        self.block = -1

    def actions(self, step: int, mask: np.ndarray, position: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Actions int64 [B] of decision `step`: mask uint8 [B, A], position int [B] lots, row int [B] of the market."""
        goal = np.where(self.follows, self.aim[row - self.first_row], self.fixed)
        target = np.where(goal == KEEP, position, goal)
        action = self.orders[target + self.large, (position > 0).astype(np.intp)]
        action[target == position] = HOLD
        if self.random.size:
            self._random_orders(step, mask, action)
        action[mask[self.lanes, action] == 0] = HOLD
        return action

    def _random_orders(self, step: int, mask: np.ndarray, action: np.ndarray) -> None:
        """Gives `random` a valid position order with probability `order_rate`."""
        if step // BLOCK != self.block:
            self.block = step // BLOCK
            steps = np.arange(self.block * BLOCK, (self.block + 1) * BLOCK, dtype=np.int64)[:, None]
            words = counters(steps, self.random, Purpose.BASELINE, self.seed)
            self.wants = uniform(words[0], np.float64) < self.order_rate
            self.pick = uniform(words[1], np.float64)
        wants = self.wants[step % BLOCK]
        if not wants.any():
            return
        orders = mask[self.random[wants]][:, _ORDERS] != 0
        count = orders.sum(axis=1)
        pick = np.minimum((self.pick[step % BLOCK, wants] * count).astype(np.int64), count - 1)
        chosen = (np.cumsum(orders, axis=1) > pick[:, None]).argmax(axis=1)  # the pick-th valid order
        action[self.random[wants]] = np.where(count > 0, _ORDERS[chosen], HOLD)


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
