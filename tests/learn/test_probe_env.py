"""Probe environments whose right answer is known, each testing one thing that the one before left out.

A tabular network (`out` = one row of weights a state) is trained by the real acting kernel, losses and optimiser; only
the environment and its bookkeeping are the test's.
"""

import numpy as np
import pytest

from kernels.heads import POLICY, VALUE, Q, expected_q, masked_policy
from kernels.isv import GROUPS, SIZE, SLOTS
from trainer.config import LearnConfig
from trainer.device import Field, NumpyDevice, allocate
from trainer.learn.optimizer import optimizer_fields, optimizer_step
from trainer.nets.losses import act, acting_fields, q_loss, rollout_loss

A, W, M = 11, 256, 32
GAMMA = 0.9
HOLD, SHORT, LONG = 2, 1, 5


class Probe:
    """`play(state, action) -> (reward, next state, terminal)` on int arrays; `allowed` lists the valid actions."""

    def __init__(self, states, play, allowed=(HOLD,), **settings):
        self.play, self.states, self.rng = play, states, np.random.default_rng(0)
        self.device = NumpyDevice()
        self.cfg = LearnConfig(
            **({"batch": M, "n_step": 1, "lr": 0.05, "epsilon": 0.05, "value_clip": 100.0} | settings)
        )
        segments = [(0, 231, "q"), (231, 242, "policy"), (242, 243, "value")]  # rows of weights [W, states]
        mask = np.zeros(A, np.uint8)
        mask[list(allowed)] = 1
        self.store = s = allocate(
            self.device,
            [
                *optimizer_fields(np.zeros(W * states), [(a * states, b * states, g) for a, b, g in segments]),
                *acting_fields("acting", M),
                Field("isv", (SIZE,)),
                Field("step", (1,), "int64"),
                Field("priority", (M,)),
                Field("net.out", (2 * M, W)),
                Field("net.d_out", (2 * M, W)),
                Field("mask", (M, A), "uint8", init=mask),
                Field("sample.action", (M,), "int32"),
                Field("sample.next_mask", (M, A), "uint8", init=mask),
                Field("sample.rewards", (M, 1)),
                Field("sample.n_used", (M,), "int32", init=1),
                Field("sample.terminal", (M,), "uint8"),
                Field("sample.is_weight", (M,), init=1),
                *(Field(f"served.{n}", (M,)) for n in ("log_mu", "advantage", "returns", "value")),
                Field("served.action", (M,), "int32"),
                Field("served.mask", (M, A), "uint8", init=mask),
                Field("served.valid", (M,), "int8", init=1),
                Field("served.aux_label", (M,), "int8", init=-1),
            ],
        )
        bus = {"gamma": GAMMA, "reward_scale": 1.0, "ppo_clip": 0.2, "tau": 0.1, "entropy_coef": 0.0}
        for name, value in bus.items() | {(f"lr_{g}", self.cfg.lr) for g in GROUPS}:
            s["isv"][SLOTS[name]] = value

    def outputs(self, states, which="param"):
        return np.ascontiguousarray(self.store[f"opt.{which}"].reshape(W, self.states).T[states])

    def learn(self, steps):
        s, d = self.store, self.device
        served, sample, net, opt = (s.ns(n) for n in ("served", "sample", "net", "opt"))
        for _ in range(steps):
            state = self.rng.integers(0, self.states, M)
            out = self.outputs(state)
            act(d, self.cfg, out, s["mask"], s["step"], s.ns("acting"))
            action = s["acting.action"]
            reward, following, terminal = self.play(state, action)
            next_out, next_target = self.outputs(following), self.outputs(following, "target")
            returns = reward + GAMMA * next_out[:, VALUE] * (1 - terminal)
            advantage = returns - out[:, VALUE]

            sample.action[:], sample.rewards[:, 0], sample.terminal[:] = action, reward, terminal
            served.action[:], served.log_mu[:], served.value[:] = action, s["acting.log_mu"], s["acting.value"]
            served.returns[:] = returns
            served.advantage[:] = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            net.out[:] = np.concatenate([out, out])
            q_loss(d, self.cfg, net, next_out, next_target, sample, s["priority"], s["isv"])
            rollout_loss(d, self.cfg, net, served, s["isv"])
            both = np.concatenate([state, state])
            opt.grad.reshape(W, self.states)[:] = net.d_out.T @ np.eye(self.states, dtype=np.float32)[both]
            optimizer_step(d, self.cfg, self.cfg.lr_decay_steps, opt, s["isv"])
            s["step"][0] += 1

    def value(self):
        return self.outputs(np.arange(self.states))[:, VALUE]

    def q(self):
        """E[Z] [states, A]."""
        out = self.outputs(np.arange(self.states))
        assert out[:, Q].shape[1] == 231
        return expected_q(out, np.linspace(self.cfg.v_min, self.cfg.v_max, 21))

    def policy(self):
        return masked_policy(self.outputs(np.arange(self.states))[:, POLICY], self.store["mask"][: self.states])[0]


def constant(shape, value):
    return np.full(shape, value, np.float32)


def test_constant_reward_is_the_value():
    probe = Probe(1, lambda s, a: (constant(M, 1.0), s, constant(M, 1)))
    probe.learn(200)
    assert probe.value()[0] == pytest.approx(1.0, abs=0.02)
    assert probe.q()[0, HOLD] == pytest.approx(1.0, abs=0.1)


def test_reward_that_depends_on_the_observation():
    probe = Probe(2, lambda s, a: (np.where(s == 1, 3.0, -2.0).astype(np.float32), s, constant(M, 1)))
    probe.learn(300)
    np.testing.assert_allclose(probe.value(), [-2.0, 3.0], atol=0.05)
    np.testing.assert_allclose(probe.q()[:, HOLD], [-2.0, 3.0], atol=0.15)


def test_delayed_reward_is_discounted_once():
    """State 0 leads to state 1 without a reward, state 1 ends with 5: V = (0.9 * 5, 5)."""
    probe = Probe(2, lambda s, a: (5.0 * s.astype(np.float32), np.ones(M, int), s.astype(np.float32)))
    probe.learn(400)
    np.testing.assert_allclose(probe.value(), [4.5, 5.0], atol=0.1)
    np.testing.assert_allclose(probe.q()[:, HOLD], [4.5, 5.0], atol=0.2)


@pytest.mark.parametrize(("terminal", "want"), [(1, 0.8), (0, 8.0)])
def test_endless_reward_sums_the_series(terminal, want):
    """0.8 a step without an end is worth 0.8 / (1 - 0.9)."""
    probe = Probe(1, lambda s, a: (constant(M, 0.8), s, constant(M, terminal)))
    probe.learn(500)
    assert probe.value()[0] == pytest.approx(want, rel=0.05)
    assert probe.q()[0, HOLD] == pytest.approx(want, rel=0.08)


def test_policy_finds_the_better_action():
    reward = np.zeros(A, np.float32)
    reward[[HOLD, SHORT, LONG]] = 0.0, -1.0, 1.0
    probe = Probe(1, lambda s, a: (reward[a], s, constant(M, 1)), (HOLD, SHORT, LONG))
    probe.learn(200)
    assert probe.policy()[0, LONG] > 0.95
    np.testing.assert_allclose(probe.q()[0, [HOLD, SHORT, LONG]], [0.0, -1.0, 1.0], atol=0.35)
    assert (probe.policy()[0, [0, 3, 4, 6, 7, 8, 9, 10]] == 0).all()


def test_policy_reads_the_observation():
    """Long earns in state 1 and loses in state 0, short the other way round."""

    def play(state, action):
        side = (action == LONG).astype(np.float32) - (action == SHORT)
        return (side * np.where(state == 1, 1, -1)).astype(np.float32), state, constant(M, 1)

    probe = Probe(2, play, (HOLD, SHORT, LONG))
    probe.learn(300)
    assert probe.policy()[0, SHORT] > 0.95 and probe.policy()[1, LONG] > 0.95
    best = np.where(probe.store["mask"][:2] == 1, probe.q(), -np.inf).argmax(axis=1)
    assert best.tolist() == [SHORT, LONG]


def test_entropy_bonus_keeps_the_policy_open():
    reward = np.zeros(A, np.float32)
    probe = Probe(1, lambda s, a: (reward[a], s, constant(M, 1)), (HOLD, SHORT, LONG))
    probe.store["opt.param"].reshape(W, 1)[231 + LONG] = 3.0  # starts out sure of itself, for nothing
    probe.store["isv"][SLOTS["entropy_coef"]] = 0.3
    probe.learn(200)
    np.testing.assert_allclose(probe.policy()[0, [HOLD, SHORT, LONG]], 1 / 3, atol=0.05)
