"""The losses once more in jax.numpy, float64, straight from the papers, and random inputs for both sides.

Nothing here is shared with the kernels but the column numbers, which are spelled out again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from kernels.isv import SIZE, SLOTS

jax.config.update("jax_enable_x64", True)

A, Z, W = 11, 21, 256
V_MIN, V_MAX = -10.0, 10.0
EPS, VALUE_CLIP = 0.02, 0.2
WEIGHTS = {"q": 0.5, "policy": 1.0, "value": 0.5, "aux": 0.5}


def bus(dtype=np.float64, **values: float) -> np.ndarray:
    isv = np.full(SIZE, np.nan, dtype)
    settings = {"gamma": 0.93, "reward_scale": 0.2, "ppo_clip": 0.2, "entropy_coef": 0.03, "tau": 0.01} | values
    for name, value in settings.items():
        isv[SLOTS[name]] = value
    return isv


def masks(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Random valid actions; hold always, and in the first row nothing else."""
    mask = (rng.random((rows, A)) < 0.6).astype(np.uint8)
    mask[:, 2] = 1
    mask[0] = 0
    mask[0, 2] = 1
    return mask


def valid_actions(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(row)) for row in mask], np.int32)


@dataclass
class Batch:
    """One joint batch of 2 M rows with everything that the two losses read, in `dtype`."""

    m: int
    seed: int = 0
    n: int = 3
    spread: float = 3.0
    dtype: type = np.float64
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, m = np.random.default_rng(self.seed), self.m
        n_used = rng.integers(1, self.n + 1, m).astype(np.int32)
        mask = masks(rng, m)
        action = valid_actions(rng, mask)
        valid = (rng.random(m) < 0.8).astype(np.int8)
        valid[-1] = 1
        self.arrays = {
            "out": rng.normal(size=(2 * m, W)) * self.spread,
            "next_online": rng.normal(size=(m, W)) * self.spread,
            "next_target": rng.normal(size=(m, W)) * self.spread,
            "q_action": rng.integers(0, A, m).astype(np.int32),
            "next_mask": masks(rng, m),
            "rewards": rng.normal(size=(m, self.n)) * 20 * (np.arange(self.n) < n_used[:, None]),
            "n_used": n_used,
            "terminal": (rng.random(m) < 0.3).astype(np.uint8),
            "is_weight": rng.uniform(0.1, 1, m),
            "action": action,
            "log_mu_old": np.log(rng.uniform(0.02, 0.9, m)),
            "advantage": rng.normal(size=m),
            "returns": rng.normal(size=m) * 3,
            "mask": mask,
            "valid": valid,
            "aux_label": rng.integers(-1, 3, m).astype(np.int8),
        }
        value = self.arrays["out"][m:, 242]
        self.arrays["value_old"] = value + rng.normal(size=m) * 0.3
        # Ratios near one, so that both sides of the clip are met.
        log_mu = np.array(jax.jit(jax_log_mu)(self.arrays["out"][m:], mask, action))
        self.arrays["log_mu_old"] = log_mu + rng.normal(size=m) * 0.25
        for name, array in self.arrays.items():
            if array.dtype == np.float64:
                self.arrays[name] = array.astype(self.dtype)

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    def c51_args(self, isv: np.ndarray, d_out: np.ndarray, priority: np.ndarray, out=None) -> tuple:
        return (
            *(self.out if out is None else out, self.next_online, self.next_target, self.q_action, self.next_mask),
            *(self.rewards, self.n_used, self.terminal, self.is_weight, V_MIN, V_MAX, WEIGHTS["q"]),
            *(d_out, priority, isv),
        )

    def ppo_args(self, isv: np.ndarray, d_out: np.ndarray, out=None) -> tuple:
        return (
            *(self.out if out is None else out, self.action, self.log_mu_old, self.advantage, self.returns),
            *(self.value_old, self.mask, self.valid, self.aux_label, EPS, VALUE_CLIP),
            *(WEIGHTS["policy"], WEIGHTS["value"], WEIGHTS["aux"], d_out, isv),
        )


def projection_by_scatter(
    probs, gain: float, discount: float, v_min: float = V_MIN, v_max: float = V_MAX
) -> np.ndarray:
    """Bellemare et al. 2017, Algorithm 1, for one sample, as printed: floor, ceil, two scattered adds."""
    dz = (v_max - v_min) / (Z - 1)
    m = np.zeros(Z)
    for j in range(Z):
        tz = min(max(gain + discount * (v_min + j * dz), v_min), v_max)
        b = (tz - v_min) / dz
        low, up = int(np.floor(b)), int(np.ceil(b))
        if low == up:  # the printed algorithm loses this mass
            m[low] += probs[j]
        else:
            m[low] += probs[j] * (up - b)
            m[up] += probs[j] * (b - low)
    return m


def jax_c51(out, next_online, next_target, batch: Batch, gamma: float, scale: float, stop=jax.lax.stop_gradient):
    """(loss, cross entropies). `stop` is applied to everything of the target."""
    z = jnp.linspace(V_MIN, V_MAX, Z)
    k = jnp.arange(batch.m)

    def dist(o):
        return jax.nn.softmax(o[:, :231].reshape(-1, A, Z), axis=-1)

    q_next = jnp.where(batch.next_mask == 1, dist(next_online) @ z, -jnp.inf)
    probs = dist(next_target)[k, jnp.argmax(q_next, axis=1)]
    gain = sum(scale * gamma**i * batch.rewards[:, i] for i in range(batch.n))
    discount = gamma**batch.n_used * (1 - batch.terminal)
    tz = jnp.clip(gain[:, None] + discount[:, None] * z, V_MIN, V_MAX)
    b = (tz - V_MIN) / (z[1] - z[0])
    low = jnp.clip(jnp.floor(b), 0, Z - 2)  # b = Z - 1 has all its mass on the upper neighbour
    low_i = jax.lax.stop_gradient(low).astype(int)
    rows = k[:, None]
    target = (
        jnp.zeros((batch.m, Z)).at[rows, low_i].add(probs * (low + 1 - b)).at[rows, low_i + 1].add(probs * (b - low))
    )
    log_p = jax.nn.log_softmax(out[: batch.m, :231].reshape(-1, A, Z), axis=-1)[k, batch.q_action]
    ce = -jnp.sum(stop(target) * log_p, axis=1)
    return WEIGHTS["q"] * jnp.mean(batch.is_weight * ce), ce


def jax_pi(rows, mask):
    return jax.nn.softmax(jnp.where(mask == 1, rows[:, 231:242], -jnp.inf), axis=-1)


def jax_log_mu(rows, mask, action):
    mu = (1 - EPS) * jax_pi(rows, mask) + EPS * mask / mask.sum(axis=1, keepdims=True)
    return jnp.log(mu[jnp.arange(len(action)), action])


def jax_ppo(out, batch: Batch, clip: float, entropy_coef: float):
    """(total, figures by ISV name)."""
    rows, live = out[batch.m :], batch.valid == 1

    def mean(x, where=live):
        return jnp.sum(jnp.where(where, x, 0)) / jnp.maximum(where.sum(), 1)

    log_ratio = jax_log_mu(rows, batch.mask, batch.action) - batch.log_mu_old
    ratio = jnp.exp(log_ratio)
    surrogate = jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * batch.advantage)
    pi = jax_pi(rows, batch.mask)
    entropy = -jnp.sum(pi * jnp.log(jnp.where(pi > 0, pi, 1)), axis=1)
    v = rows[:, 242]
    v_clipped = batch.value_old + jnp.clip(v - batch.value_old, -VALUE_CLIP, VALUE_CLIP)
    v_loss = 0.5 * jnp.maximum((v - batch.returns) ** 2, (v_clipped - batch.returns) ** 2)
    labelled = live & (batch.aux_label >= 0)
    aux = -jax.nn.log_softmax(rows[:, 243:246], axis=-1)[jnp.arange(batch.m), jnp.maximum(batch.aux_label, 0)]
    figures = {
        "l_pi": -mean(surrogate),
        "l_v": mean(v_loss),
        "l_aux": mean(aux, labelled),
        "entropy": mean(entropy),
        "approx_kl": mean(ratio - 1 - log_ratio),
        "clip_frac": mean(jnp.abs(ratio - 1) > clip),
        "value_mean": mean(v),
    }
    total = WEIGHTS["policy"] * (figures["l_pi"] - entropy_coef * figures["entropy"])
    return total + WEIGHTS["value"] * figures["l_v"] + WEIGHTS["aux"] * figures["l_aux"], figures
