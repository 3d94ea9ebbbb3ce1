"""Acting and the two losses over the joint batch, as region code: thin launches with the settings of LearnConfig.

The joint batch `joint` is a network's activations (`out`, `d_out` [2M, W]): rows 0:M are replay samples, rows M:2M
rollout rows. `q_loss` and `rollout_loss` together write every element of `joint.d_out`, so nobody zeroes it.
"""

from __future__ import annotations

from typing import Any

from kernels import c51_loss, policy_sample, ppo_loss
from trainer.config import LearnConfig
from trainer.device import Device, Field
from trainer.device.fields import REAL


def acting_fields(prefix: str, rows: int) -> list[Field]:
    """What `act` writes, one value a backtest [rows]."""

    def field(name: str, dtype: str, doc: str) -> Field:
        return Field(f"{prefix}.{name}", (rows,), dtype, "scratch", doc=doc)

    return [
        field("action", "int32", "drawn from mu"),
        field("log_mu", REAL, "log mu(action)"),
        field("value", REAL, "V(s), scaled return"),
        field("entropy_frac", REAL, "H(pi) / log n_valid"),
        field("greedy", "int32", "valid argmax of pi"),
        field("q_greedy", "int32", "valid argmax of E[Z]"),
    ]


def act(device: Device, cfg: LearnConfig, out: Any, mask: Any, step: Any, acting: Any) -> None:
    """Draws an action for every row of head output `out` [B, W] into `acting` (the namespace of `acting_fields`)."""
    device.launch(
        policy_sample.KERNEL,
        *(out, mask, step, cfg.seed, cfg.epsilon),
        *(acting.action, acting.log_mu, acting.value, acting.entropy_frac, acting.greedy, acting.q_greedy),
    )


def q_loss(
    device: Device,
    cfg: LearnConfig,
    joint: Any,
    next_online: Any,
    next_target: Any,
    sample: Any,
    priority: Any,
    isv: Any,
) -> None:
    """Gradient of the Q loss into rows 0:M of `joint.d_out`; raw priorities [M]; l_q and its signals on the bus.

    `next_online`, `next_target` [M, W]: head outputs at s'. `sample`: action, next_mask, rewards, n_used, terminal,
    is_weight of the M replay samples.
    """
    device.launch(
        c51_loss.KERNEL,
        *(joint.out, next_online, next_target, sample.action, sample.next_mask, sample.rewards, sample.n_used),
        *(sample.terminal, sample.is_weight, cfg.v_min, cfg.v_max, cfg.weight_q, joint.d_out, priority, isv),
    )


def rollout_loss(device: Device, cfg: LearnConfig, joint: Any, served: Any, isv: Any) -> None:
    """Gradient of the policy, value, entropy and aux losses into rows M:2M of `joint.d_out`; their figures on the bus.

    `served`: action, log_mu, advantage, returns, value, mask, valid, aux_label of the M rollout rows.
    """
    device.launch(
        ppo_loss.KERNEL,
        *(joint.out, served.action, served.log_mu, served.advantage, served.returns, served.value, served.mask),
        *(served.valid, served.aux_label, cfg.epsilon, cfg.value_clip, cfg.weight_policy, cfg.weight_value),
        *(cfg.weight_aux, joint.d_out, isv),
    )
