"""The arrays of B parallel backtests."""

from __future__ import annotations

import numpy as np

from kernels.env_step import PARKED, RANDOM, TRUNCATED, Action
from kernels.heads import N_ACTIONS
from trainer.config import N_PRIVATE, StudyConfig
from trainer.device.fields import Field
from trainer.env.actions import HOLD, target_table
from trainer.errors import DataError

MIN_ROWS = 8  # rows that a random start leaves before the window or the session ends
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def start_rows(first: np.ndarray, last: np.ndarray, window: tuple[int, int], k: int) -> np.ndarray:
    """Rows of `window` = [a, b) on which an episode may start, int32 [S].

    The encoder's k rows lie within the window and the session, and at least MIN_ROWS rows of both follow. Raises
    DataError when there is none.
    """
    a, b = window
    rows = np.arange(a, b, dtype=np.int32)
    head = np.maximum(first[a:b], a)
    tail = np.minimum(last[a:b], b - 1)
    legal = rows[(rows - k + 1 >= head) & (rows + MIN_ROWS <= tail)]
    if not legal.size:
        raise DataError(
            f"window of rows {a} to {b - 1}: no session in it has the {k + MIN_ROWS} rows that an episode needs\n"
            "use fewer folds, more data, a smaller net.window or a larger data.session_gap_s"
        )
    return legal


def env_fields(
    cfg: StudyConfig, B: int, starts: np.ndarray | None = None, limit: int | None = None, prefix: str = "env"
) -> list[Field]:
    """State, outputs and settings of B backtests.

    Training: `starts` from `start_rows` and `limit`, the last row of the window; episodes have cfg.env.episode_len rows
    and end at the drawdown limit. Evaluation: without `starts` every lane is parked until `Environment.reset_to`, its
    episode is as long as asked for and no drawdown ends it. `fee`, `drawdown`, `episode_rows` and `limit_row` are
    settings of each lane, so that baselines and cost levels run side by side.
    """
    training = starts is not None
    starts = np.zeros(1, np.int32) if starts is None else np.asarray(starts, np.int32)
    env = cfg.env
    drawdown = round(env.drawdown_ticks * 1000) if training else INT64_MAX
    trail = np.array([*env.trail_ticks, INT32_MAX], np.int32)
    mask = np.zeros((B, N_ACTIONS), np.uint8)
    mask[:, Action.HOLD] = 1

    def lane(name: str, dtype: str, kind: str = "state", init: object = 0, doc: str = "") -> Field:
        return Field(f"{prefix}.{name}", (B,), dtype, kind, init, doc)

    settings = [
        Field(f"{prefix}.starts", starts.shape, "int32", "data", starts, "rows on which an episode may start"),
        Field(f"{prefix}.targets", (N_ACTIONS,), "int32", "data", target_table(env), "lots"),
        Field(f"{prefix}.trail_ticks", (4,), "int32", "data", trail, "stop distances; the last: none"),
        lane("fee", "int64", "data", round(env.fee_ticks * 1000), "1/1000 tick a lot and side"),
        lane("drawdown", "int64", "data", drawdown, "1/1000 tick"),
        lane("episode_rows", "int32", "data", env.episode_len if training else INT32_MAX),
        lane("limit_row", "int32", "data", INT32_MAX if limit is None else limit),
        lane("ended", "int8", "data", TRUNCATED, "what reset_all copies into done"),
        lane("hold", "int32", "data", HOLD, "an action for steps that ignore it"),
    ]
    state = [
        lane("start_row", "int32", init=RANDOM if training else PARKED),
        # Before the first step a lane stands, done, on a row that has a whole window before it.
        lane("row", "int32", init=int(starts[0])),
        lane("done", "int8", init=TRUNCATED),
        *(lane(name, "int32") for name in ("end_row", "episode_row", "position", "target", "pending_row")),
        *(lane(name, "int64") for name in ("cash", "equity", "peak", "entry_cash")),
        *(lane(name, "int32") for name in ("best", "trail", "hold_rows")),
        Field(f"{prefix}.mask", (B, N_ACTIONS), "uint8", "state", mask),
        Field(f"{prefix}.private", (B, N_PRIVATE), doc="see kernels/env_step.py"),
    ]
    outputs = [
        lane("reward", "real"),
        *(lane(name, "int8") for name in ("valid", "ordered", "action_done", "closed")),
        *(lane(name, "int32") for name in ("closed_rows", "closed_lots", "filled")),
        *(lane(name, "int64") for name in ("closed_pnl", "fee_paid", "spread_paid")),
    ]
    return settings + state + outputs
