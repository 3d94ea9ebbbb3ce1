"""What the environment's step says about trading, put on the ISV bus. The last kernel of a step: it advances the clock.

Shares and means are ratios of sums that decay by DECAY a step, so each trade and each decision weighs the same. What is
added in one step is an integer sum (but for the reward), the same in any order.
"""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel, one_block

DECAY = 0.99  # memory of 100 steps, the period of the controllers
TRADES, ROWS, WINS, DECISIONS, HOLDS, REWARD = range(6)
N_SUMS = 6
MIN_TRADES = 1.0  # decayed trades below which hold_rows is 0, which controllers take for "no signal"


def signals(
    valid: np.ndarray,
    reward: np.ndarray,
    ordered: np.ndarray,
    closed: np.ndarray,
    closed_pnl: np.ndarray,
    closed_rows: np.ndarray,
    sums: np.ndarray,
    trades: np.ndarray,
    step: np.ndarray,
    isv: np.ndarray,
) -> None:
    """Writes hold_rows, wr, hold_pct, trades, reward_mean; a ratio of nothing keeps its last value."""
    live, ended = valid != 0, closed != 0
    n_live, n_ended = int(live.sum()), int(ended.sum())
    now = (
        n_ended,
        int((closed_rows * ended).sum()),
        int(((closed_pnl > 0) & ended).sum()),
        n_live,
        int((live & (ordered == 0)).sum()),
        (reward * live).sum(),
    )
    sums *= np.asarray(DECAY, sums.dtype)
    sums += np.array(now, sums.dtype)
    trades[0] += n_ended
    step[0] += 1

    if sums[TRADES] > 0:
        isv[SLOTS["hold_rows"]] = sums[ROWS] / sums[TRADES] if sums[TRADES] >= MIN_TRADES else 0
        isv[SLOTS["wr"]] = sums[WINS] / sums[TRADES]
    if sums[DECISIONS] > 0:
        isv[SLOTS["hold_pct"]] = 100 * sums[HOLDS] / sums[DECISIONS]
        isv[SLOTS["reward_mean"]] = sums[REWARD] / sums[DECISIONS]
    isv[SLOTS["trades"]] = trades[0]


KERNEL = Kernel(
    "signals",
    (
        Arg("valid", "int8", "in", "B", "0: this step was a reset"),
        Arg("reward", REAL, "in", "B", "unscaled ticks"),
        Arg("ordered", "int8", "in", "B", "1: the action placed a position order"),
        Arg("closed", "int8", "in", "B", "1: a round trip closed"),
        Arg("closed_pnl", "int64", "in", "B", "its net PnL, 1/1000 tick; above 0 is a win"),
        Arg("closed_rows", "int32", "in", "B", "rows it was held"),
        Arg("sums", REAL, "inout", str(N_SUMS), "decayed sums: trades, rows, wins, decisions, holds, reward"),
        Arg("trades", "int64", "inout", "1", "closed round trips"),
        Arg("step", "int64", "inout", "1", "clock of the run"),
        Arg("isv", REAL, "inout", str(SIZE), "writes hold_rows, wr, hold_pct (0-100), trades, reward_mean (ticks)"),
    ),
    signals,
    launcher=one_block,
    tolerance=(1e-5, 1e-5, "one float32 sum over B rewards"),
    constants=cuda_constants()
    | {"DECAY": DECAY, "MIN_TRADES": MIN_TRADES, "N_SUMS": N_SUMS, "SUM_TRADES": TRADES, "SUM_ROWS": ROWS}
    | {"SUM_WINS": WINS, "SUM_DECISIONS": DECISIONS, "SUM_HOLDS": HOLDS, "SUM_REWARD": REWARD},
)
