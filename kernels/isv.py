"""The ISV bus: 585 float32 on the device, one table of named slots. CUDA's constants are generated from this table.

Three kinds of slot: outputs (what a controller sets and a kernel reads), signals (what a kernel measures), state
(what a controller remembers). Slots are numbered in the order of this file and never renumbered within a version.
"""

from __future__ import annotations

SIZE = 585

GROUPS = ("encoder", "q", "policy", "value", "aux")  # learning-rate groups, in arena order

OUTPUTS = (
    "gamma",
    "tau",
    "ppo_clip",
    "entropy_coef",
    "per_alpha",
    "reward_scale",
    "rollout_len",
    *(f"lr_{g}" for g in GROUPS),
)

SIGNALS = (
    "hold_rows",  # mean holding rows of closed trades
    "target_distance",  # norm(theta - theta') / norm(theta)
    "approx_kl",  # KL(acting || current) on the rollout rows of this step
    "entropy_frac",  # mean H / log n_valid on the rollout rows of this step
    "priority_ess",  # effective sample size of the priorities / N
    "target_std",  # standard deviation of the scaled n-step target
    "rollout_kl",  # approx_kl at the last step of a rollout's epoch
    "rollout_kl_len",  # T of the rollout that rollout_kl was measured on
    *(f"update_rms_{g}" for g in GROUPS),  # RMS of the parameter change / RMS of the parameters
)

METRICS = (
    "l_q",
    "l_pi",
    "l_v",
    "l_aux",
    "entropy",
    "grad_norm",
    "clip_frac",
    "edge_mass",  # C51 probability on the two outermost atoms
    "q_mean",
    "value_mean",
    "reward_mean",
    "wr",  # share of closed round trips with net PnL > 0, running
    "hold_pct",  # share of decisions without a position order, running, 0-100
    "trades",
    "per_beta",
    "lr_factor",  # learning-rate decay, 1.0 without one
)

# Per controller; the numbers 0-7 of its state slots follow this order. `sum` and `count` are of the readings since it
# last acted, `updates` is how often the estimate was blended.
STATE = ("estimate", "noise_variance", "signal_variance", "gain", "sum", "count", "updates", "target")
STATE_PER_CONTROLLER = len(STATE)


def _table() -> dict[str, int]:
    names = [*OUTPUTS, *SIGNALS, *METRICS]
    names += [f"state_{output}_{i}" for output in OUTPUTS for i in range(STATE_PER_CONTROLLER)]
    assert len(names) == len(set(names)) <= SIZE
    return {name: i for i, name in enumerate(names)}


SLOTS: dict[str, int] = _table()


def cuda_constants() -> dict[str, int]:
    """`ISV_GAMMA` -> slot and so on, #define'd before every CUDA source that reads the bus."""
    return {"ISV_SIZE": SIZE} | {f"ISV_{name.upper()}": slot for name, slot in SLOTS.items()}
