"""Every setting of a study: frozen, validated, one class a stage. Profiles (TOML) override the defaults here.

`load_config("cpu-demo", ["env.fee_ticks=0.2"])` -> StudyConfig. Unknown keys are errors that show the nearest name.
Units are in the names (ticks, rows, ms). `identity()` is what shapes results; paths, device, cadences, n_steps don't.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernels.isv import OUTPUTS
from trainer.errors import ConfigError, nearest

PROFILES = Path(__file__).with_name("profiles")
N_PRIVATE = 8


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(_Config):
    """Stage 1: how market files become rows and features."""

    symbol: str = Field("", description="instrument to pick when a file holds several")
    tick_size: float = Field(0.0, ge=0, description="price grid; 0: from the DBN definition, else inferred and said")
    multiplier: float = Field(1.0, gt=0, description="currency per point of price, for reports")
    sample: str = Field(
        "auto", description="100ms | 1s | 1m | event | volume:N; auto: 100ms for books, event otherwise"
    )
    levels: int = Field(10, ge=1, le=10, description="book levels kept")
    spread_ticks: int = Field(1, ge=1, description="spread assumed for bars without quotes, ticks")
    bar_stamp: Literal["start", "end"] = Field(
        "start", description="what the times of CSV and Parquet bars are; starts are moved to the bar's end"
    )
    session_gap_s: float = Field(1800.0, gt=0, description="a silence longer than this starts a new session, seconds")
    label_rows: int = Field(50, ge=1, description="aux target: sign of the mid's move over this many rows")


class FoldConfig(_Config):
    """Stage 1: walk-forward windows."""

    folds: int = Field(3, ge=1, le=100, description="folds; the series is cut into folds + 1 windows")
    validation_share: float = Field(0.15, ge=0, lt=0.5, description="end of each train window kept for validation")


class EnvConfig(_Config):
    """Stage 2: the backtest environment."""

    n_backtests: int = Field(1024, ge=1, description="B, parallel backtests")
    episode_len: int = Field(128, ge=8, description="rows of one episode")
    latency_ms: float = Field(5.0, ge=0, description="decision to fill, milliseconds; always at least one row")
    latency_rows: int = Field(0, ge=0, description="decision to fill in rows; 0: use latency_ms")
    lots_small: int = Field(1, ge=1, description="lots of a small position")
    lots_large: int = Field(2, ge=2, description="lots of a large position")
    fee_ticks: float = Field(0.1, ge=0, description="fee per lot and side, ticks (to 1/1000)")
    trail_ticks: tuple[int, int, int] = Field(
        (4, 8, 16), description="trailing stop distances, ticks; a fourth is none"
    )
    inventory_penalty: float = Field(0.3, ge=0, description="reward cost per lot^2 and row, ticks")
    message_cost: float = Field(0.2, ge=0, description="reward cost of every action but hold, ticks")
    drawdown_ticks: float = Field(500.0, gt=0, description="an episode ends at this loss from its equity peak, ticks")

    @model_validator(mode="after")
    def _check(self) -> EnvConfig:
        if self.fee_ticks and not round(self.fee_ticks * 1000):
            raise ValueError(f"fee_ticks {self.fee_ticks:g} rounds to nothing: write 0, or 0.001 or more")
        if self.lots_large <= self.lots_small:
            raise ValueError("lots_large must be above lots_small")
        if not 0 < self.trail_ticks[0] < self.trail_ticks[1] < self.trail_ticks[2]:
            raise ValueError("trail_ticks must increase from above 0")
        return self


class NetConfig(_Config):
    """Stage 3: sizes of the policy network (glossary: docs/architecture.md)."""

    d_model: int = Field(128, ge=8, description="D")
    layers: int = Field(2, ge=1, le=8, description="L, Mamba-2 layers")
    window: int = Field(32, ge=4, le=64, description="K, rows the encoder sees; one SSD chunk")
    d_state: int = Field(64, ge=4, description="SSD state size")
    headdim: int = Field(64, ge=4, description="SSD head size; d_inner = 2 D is a multiple of it")
    hidden: int = Field(128, ge=8, description="H, recurrent state of the CfC cell")
    backbone: int = Field(128, ge=8, description="CfC backbone units")
    hold_bias: float = Field(2.0, description="initial bias of the hold logit")

    @model_validator(mode="after")
    def _check(self) -> NetConfig:
        if (2 * self.d_model) % self.headdim:
            raise ValueError(f"headdim {self.headdim} must divide 2 * d_model = {2 * self.d_model}")
        return self


class LearnConfig(_Config):
    """Stage 4: recipe alpha-rl."""

    seed: int = Field(0, ge=0, lt=2**32)
    batch: int = Field(1024, ge=1, description="M, rows of each loss a step; divides n_backtests")
    n_step: int = Field(3, ge=1, le=8, description="n of the n-step return")
    gamma: float = Field(0.95, gt=0, lt=1, description="initial discount")
    gae_lambda: float = Field(0.8, ge=0, le=1)
    epsilon: float = Field(0.02, ge=0, lt=1, description="floor mixed into the acting policy")
    ppo_clip: float = Field(0.2, gt=0, lt=1, description="initial PPO clip")
    value_clip: float = Field(0.2, gt=0, description="clip of the value update, in units of scaled return")
    entropy_coef: float = Field(0.03, ge=0, description="initial entropy coefficient")
    tau: float = Field(0.01, gt=0, le=1, description="initial Polyak rate")
    reward_scale: float = Field(0.2, gt=0, description="initial reward scale")
    rollout_len: Literal[16, 32, 64, 128] = Field(16, description="initial T, rows of a rollout")
    lr: float = Field(2e-3, gt=0, description="initial learning rate of all five groups")
    lr_decay_steps: int = Field(
        0,
        ge=-1,
        description="linear decay to 0 over this many updates; 0: none; -1: run.n_steps, which then shapes results",
    )
    adam_b1: float = Field(0.9, ge=0, lt=1)
    adam_b2: float = Field(0.99, ge=0, lt=1)
    adam_eps: float = Field(1e-8, gt=0)
    grad_clip: float = Field(1.0, gt=0, description="global norm")
    weight_q: float = Field(0.5, ge=0)
    weight_policy: float = Field(1.0, ge=0)
    weight_value: float = Field(0.5, ge=0)
    weight_aux: float = Field(0.5, ge=0)
    v_min: float = Field(-10.0, description="lowest atom, scaled return")
    v_max: float = Field(10.0, description="highest atom")
    per_capacity: int = Field(65536, ge=64, description="transitions in replay; a multiple of n_backtests")
    per_alpha: float = Field(0.6, ge=0, le=1, description="initial priority exponent")
    per_beta: float = Field(
        0.4, ge=0, le=1, description="initial importance exponent, annealed to 1 over 100,000 steps"
    )
    frozen: tuple[str, ...] = Field((), description="controllers held at their initial value; ('all',): every one")

    @model_validator(mode="after")
    def _check(self) -> LearnConfig:
        if self.v_max <= self.v_min:
            raise ValueError(f"v_max {self.v_max:g} must be above v_min {self.v_min:g}")
        for name in self.frozen:
            if name not in (*OUTPUTS, "all"):
                raise ValueError(
                    f"frozen: no controller is named {name!r}{nearest(name, [*OUTPUTS, 'all'])}\n"
                    f"choose from all, {', '.join(OUTPUTS)}"
                )
        return self


class EvalConfig(_Config):
    """Stage 5: statistics and the gate."""

    bootstrap_samples: int = Field(2000, ge=100)
    bootstrap_block_min: float = Field(10.0, gt=0, description="block of the bootstrap, minutes")
    confidence: float = Field(0.95, gt=0.5, lt=1)
    min_wr: float = Field(0.55, ge=0, le=1, description="gate: win rate on all folds together")
    min_wr_fold: float = Field(0.50, ge=0, le=1, description="gate: win rate of the worst fold")
    min_entropy: float = Field(0.05, ge=0, le=1, description="gate: H / log n_valid below this is collapsed")
    hold_pct_min: float = Field(30.0, ge=0, le=100)
    hold_pct_max: float = Field(70.0, ge=0, le=100)
    min_trades: int = Field(30, ge=0, description="gate: round trips a fold; 0 switches it off")
    require_positive_net: bool = Field(True, description="gate: pooled net PnL's interval above zero")
    select: Literal["final", "best-val"] = Field("final", description="weights that are judged")

    @model_validator(mode="after")
    def _check(self) -> EvalConfig:
        if self.hold_pct_max <= self.hold_pct_min:
            raise ValueError(f"hold_pct_max {self.hold_pct_max:g} must be above hold_pct_min {self.hold_pct_min:g}")
        return self


class RunConfig(_Config):
    """How a run is carried out; nothing here changes a result."""

    n_steps: int = Field(1500, ge=1, description="training steps of a fold")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tf32: bool = True
    checkpoint_every: int = Field(5000, ge=1, description="steps between checkpoints")
    checkpoint_minutes: float = Field(10.0, gt=0)
    metrics_every: int = Field(50, ge=1, description="steps between metric lines")
    validate_every: int = Field(500, ge=0, description="steps between validation passes; 0: never")


class StudyConfig(_Config):
    profile: str = "custom"
    data: DataConfig = DataConfig()
    folds: FoldConfig = FoldConfig()
    env: EnvConfig = EnvConfig()
    net: NetConfig = NetConfig()
    learn: LearnConfig = LearnConfig()
    eval: EvalConfig = EvalConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _check(self) -> StudyConfig:
        b, m, c = self.env.n_backtests, self.learn.batch, self.learn.per_capacity
        if b % m:
            raise ValueError(f"learn.batch {m} must divide env.n_backtests {b}")
        if c % b or c < 10 * m + b * self.learn.n_step:
            raise ValueError(
                f"learn.per_capacity {c} must be a multiple of env.n_backtests {b} and hold 10 batches of {m}"
            )
        return self

    @property
    def lr_decay_steps(self) -> int:
        """Updates over which the learning rates decay; 0: they don't."""
        return self.run.n_steps if self.learn.lr_decay_steps < 0 else self.learn.lr_decay_steps

    def identity(self) -> dict[str, Any]:
        """The settings that shape training results, JSON-ready."""
        found = self.model_dump(mode="json", include={"data", "folds", "env", "net", "learn"})
        found["learn"]["lr_decay_steps"] = self.lr_decay_steps
        return found

    def digest(self) -> str:
        """SHA-256 over `identity()`, hex."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()


def profile_names() -> list[str]:
    return sorted(p.stem for p in PROFILES.glob("*.toml"))


def load_config(profile: str = "cpu-demo", overrides: list[str] | tuple[str, ...] = ()) -> StudyConfig:
    """A profile name or a TOML path, then `section.key=value` overrides. Raises ConfigError."""
    path = Path(profile) if profile.endswith(".toml") else PROFILES / f"{profile}.toml"
    if not path.is_file():
        known = profile_names()
        raise ConfigError(
            f"config {profile!r}: no such profile or file{nearest(profile, known)}\n"
            f"choose one of {', '.join(known)}, or give a path that ends in .toml"
        )
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config {path}: not valid TOML: {error}\nfix that line") from None
    tree.setdefault("profile", path.stem)
    cfg = build_config(tree, str(path))
    return build_config(_override(tree, overrides), "--set") if overrides else cfg


def with_overrides(cfg: StudyConfig, overrides: list[str]) -> StudyConfig:
    """A config with `section.key=value` assignments on top. Raises ConfigError."""
    return build_config(_override(cfg.model_dump(mode="json"), overrides), "--set")


def _override(tree: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> dict[str, Any]:
    for item in overrides:
        key, eq, text = item.partition("=")
        section, dot, name = key.strip().partition(".")
        if not eq or not dot:
            raise ConfigError(f"--set {item}: expected section.key=value, for example --set env.fee_ticks=0.2")
        if not isinstance(tree.setdefault(section, {}), dict):
            raise ConfigError(f"--set {item}: {section!r} has no keys below it")
        tree[section][name] = _value(text.strip())
    return tree


def build_config(tree: dict[str, Any], where: str = "config") -> StudyConfig:
    """Validates a nested dict. Raises ConfigError with the key, the value and the nearest known name."""
    try:
        return StudyConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"]) or "config"
        if first["type"] == "extra_forbidden":
            known = _known_keys()
            hint = nearest(key, known) or f"; known here: {', '.join(_siblings(key, known))}"
            raise ConfigError(f"{where}: unknown key {key!r}{hint}") from None
        # A rule over several keys names their values itself; its input would be the whole section.
        shown = "" if isinstance(first.get("input"), dict | BaseModel) else f" (got {first.get('input')!r})"
        raise ConfigError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}{shown}") from None


def _value(text: str) -> Any:
    """A TOML value when it parses as one, else the text itself (`data.sample=100ms` needs no quotes)."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _known_keys() -> list[str]:
    keys = []
    for name, info in StudyConfig.model_fields.items():
        sub = info.annotation
        if isinstance(sub, type) and issubclass(sub, BaseModel):
            keys += [f"{name}.{key}" for key in sub.model_fields]
        keys.append(name)
    return keys


def _siblings(key: str, known: list[str]) -> list[str]:
    section = key.partition(".")[0] + "."
    return [k for k in known if k.startswith(section)] or [k for k in known if "." not in k]
