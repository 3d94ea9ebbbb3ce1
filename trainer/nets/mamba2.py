"""One Mamba-2 layer as region code: in_proj GEMM -> fused mixer -> out_proj GEMM, and backward.

Parameters and start values: Dao and Gu 2024 and the published `mamba_ssm` module Mamba2; d_inner = 2 D, one group. The
rows of in_proj are in the order z, C, B, x, dt (published: z, x, B, C, dt), so what the last layer needs of all rows,
B, x and dt, is one contiguous block of the weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels import mamba2_last, mamba2_last_bwd, mamba2_mixer, mamba2_mixer_bwd
from kernels import window_tail_bwd as tail_bwd
from kernels.vectors import mixer_vectors, place
from trainer.config import NetConfig
from trainer.device.base import Device
from trainer.device.fields import Field
from trainer.nets.arena import Entry, Init, ParamLayout, constant, fan_in
from trainer.nets.layers import linear, linear_backward_input, linear_backward_weight, vectors_backward

EPS = 1e-5  # of every RMSNorm of the network, inside the root; mamba_ssm's default
TAPS = 4  # width of the causal convolution
DT_MIN, DT_MAX = 1e-3, 1e-1  # range of the time steps at the start
A_MIN, A_MAX = 1.0, 16.0  # range of the decay rates at the start


def _dt_bias(u: np.ndarray) -> np.ndarray:
    """Inverse softplus of time steps that are log-uniform in [DT_MIN, DT_MAX)."""
    dt = np.exp(math.log(DT_MIN) + u * math.log(DT_MAX / DT_MIN))
    return dt + np.log(-np.expm1(-dt))


class Mixer:
    """Sizes, parameters and blocks of one layer's mixer; `MixerAll` and `MixerLast` compute it."""

    def __init__(self, cfg: NetConfig, index: int):
        self.name = f"layers.{index}"
        self.d, self.n, self.window, self.depth = cfg.d_model, cfg.d_state, cfg.window, cfg.layers
        self.inner = 2 * cfg.d_model  # DI
        self.heads = self.inner // cfg.headdim  # HD
        self.channels = self.inner + 2 * self.n  # CH
        self.width = self.inner + self.channels + self.heads  # E, rows of in_proj
        self.shapes = mixer_vectors(self.channels, self.heads, self.inner)
        self.vector_size = place(self.shapes)[1]

    def entries(self) -> list[Entry]:
        starts: dict[str, Init] = {
            "conv.weight": fan_in(TAPS),
            "conv.bias": fan_in(TAPS),
            "dt_bias": _dt_bias,
            "A_log": lambda u: np.log(A_MIN + (A_MAX - A_MIN) * u),
            "D": constant(1.0),
            "gate_norm.weight": constant(1.0),
        }
        return [
            Entry(f"{self.name}.in_proj.weight", (self.width, self.d), fan_in(self.d)),
            *(Entry(f"{self.name}.{key}", shape, starts[key]) for key, shape in self.shapes.items()),
            # Scaled by depth^-0.5, so that the residual stream's variance does not grow with depth (as in GPT-2).
            Entry(f"{self.name}.out_proj.weight", (self.d, self.inner), fan_in(self.inner, self.depth**-0.5)),
        ]

    def add_blocks(self, layout: ParamLayout) -> None:
        matrix = f"{self.name}.in_proj.weight"
        layout.add_vectors(f"{self.name}.vectors", f"{self.name}.conv.weight", f"{self.name}.gate_norm.weight")
        layout.add_rows(f"{self.name}.z", matrix, 0, self.inner)
        layout.add_rows(f"{self.name}.c", matrix, self.inner, self.inner + self.n)
        layout.add_rows(f"{self.name}.bxdt", matrix, self.inner + self.n, self.width)

    def _vectors(self, p: Any) -> tuple[Any, ...]:
        return tuple(p[f"{self.name}.{key}"] for key in self.shapes)

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        raise NotImplementedError

    def forward(self, device: Device, p: Any, act: Any, n: Any) -> None:
        raise NotImplementedError

    def backward(self, device: Device, p: Any, g: Any, act: Any, n: Any, ddelta: Any, dn: Any) -> None:
        raise NotImplementedError

    def _scratch(self, prefix: str, shapes: dict[str, tuple[int, ...]]) -> list[Field]:
        return [Field(f"{prefix}.{self.name}.{key}", shape, kind="scratch") for key, shape in shapes.items()]


class MixerAll(Mixer):
    """Every row of the window: the layers below the last."""

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        r, k = rows, self.window
        out = self._scratch(prefix, {"y": (r, k, self.inner), "delta": (r, k, self.d)})
        return out + self.mixer_fields(prefix, rows, backward)

    def forward(self, device: Device, p: Any, act: Any, n: Any) -> None:
        """n [R, K, D] -> `delta` [R, K, D]. Kept for backward: zcbxdt, y."""
        a = self.name
        linear(device, n, p[f"{a}.in_proj.weight"], act[f"{a}.zcbxdt"])
        self.mix(device, p, act, act[f"{a}.y"])
        linear(device, act[f"{a}.y"], p[f"{a}.out_proj.weight"], act[f"{a}.delta"])

    def backward(self, device: Device, p: Any, g: Any, act: Any, n: Any, ddelta: Any, dn: Any) -> None:
        a, dproj = self.name, act[f"{self.name}.dzcbxdt"]
        linear_backward_weight(device, ddelta, act[f"{a}.y"], g[f"{a}.out_proj.weight"])
        self.mix_backward(device, p, g, act, ddelta)
        linear_backward_weight(device, dproj, n, g[f"{a}.in_proj.weight"])
        linear_backward_input(device, dproj, p[f"{a}.in_proj.weight"], dn)

    # -- between in_proj and out_proj --
    def mixer_fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        r, k = backward, self.window
        shapes: dict[str, tuple[int, ...]] = {"zcbxdt": (rows, k, self.width)}
        if backward:
            shapes |= {"dy": (r, k, self.inner), "dzcbxdt": (r, k, self.width), "mixer_partial": (r, self.vector_size)}
            shapes["row_dot"] = (r, k)
        return self._scratch(prefix, shapes)

    def mix(self, device: Device, p: Any, act: Any, y: Any) -> None:
        """zcbxdt -> the first DI columns of y [R, K, DI or more]."""
        device.launch(mamba2_mixer.KERNEL, act[f"{self.name}.zcbxdt"], *self._vectors(p), EPS, int(device.tf32), y)

    def mix_backward(self, device: Device, p: Any, g: Any, act: Any, ddelta: Any) -> None:
        """Gradient at out_proj's output -> `dzcbxdt`, `row_dot` (see the kernel), and the gradients of the vectors."""
        a, dy, partial = self.name, act[f"{self.name}.dy"], act[f"{self.name}.mixer_partial"]
        linear_backward_input(device, ddelta, p[f"{a}.out_proj.weight"], dy)
        out = act[f"{a}.dzcbxdt"], partial, act[f"{a}.row_dot"]
        inputs = act[f"{a}.zcbxdt"], *self._vectors(p), EPS, int(device.tf32)
        device.launch(mamba2_mixer_bwd.KERNEL, dy, *inputs, *out)
        vectors_backward(device, partial, g[f"{a}.vectors"])

    def flops(self, rows: int) -> int:
        """Floating-point operations of a forward pass, multiply and add counted apart; elementwise work left out."""
        n = rows * self.window
        ssd = self.window * (self.n + self.heads + self.inner)
        return 2 * n * (self.width * self.d + ssd + TAPS * self.channels + self.inner * self.d)


class MixerLast(Mixer):
    """The last row of each window: exactly what `MixerAll` gives there, for 40 % of the work."""

    def fields(self, prefix: str, rows: int, backward: int) -> list[Field]:
        r, k, wide = rows, self.window, self.width - self.inner - self.n
        shapes: dict[str, tuple[int, ...]] = {
            "tail": (r, TAPS, self.d),
            "last": (r, self.d),
            "bxdt": (r, k, wide),
            "c": (r, TAPS, self.n),
            "z": (r, self.inner),
            "y": (r, self.inner),
            "delta": (r, self.d),
        }
        if backward:
            r = backward
            shapes |= {
                "dtail": (r, TAPS, self.d),
                "dlast": (r, self.d),
                "dbxdt": (r, k, wide),
                "dc": (r, TAPS, self.n),
                "dz": (r, self.inner),
                "dy": (r, self.inner),
                "mixer_partial": (r, self.vector_size),
            }
        return self._scratch(prefix, shapes)

    def tails(self, act: Any) -> tuple[Any, Any]:
        """Where the last rows of the layer's input belong: the last four, and the last one."""
        return act[f"{self.name}.tail"], act[f"{self.name}.last"]

    def forward(self, device: Device, p: Any, act: Any, n: Any) -> None:
        """n [R, K, D], its last rows in `tail`, `last` -> `delta` [R, D]. Kept for backward: these, bxdt, c, z, y."""
        a, (tail, last) = self.name, self.tails(act)
        bxdt, c, z, y = (act[f"{a}.{key}"] for key in ("bxdt", "c", "z", "y"))
        linear(device, n, p[f"{a}.bxdt"], bxdt)
        linear(device, tail, p[f"{a}.c"], c)
        linear(device, last, p[f"{a}.z"], z)
        device.launch(mamba2_last.KERNEL, bxdt, c, z, *self._vectors(p), EPS, y)
        linear(device, y, p[f"{a}.out_proj.weight"], act[f"{a}.delta"])

    def backward(self, device: Device, p: Any, g: Any, act: Any, n: Any, ddelta: Any, dn: Any) -> None:
        a, dtail, dlast = self.name, act[f"{self.name}.dtail"], act[f"{self.name}.dlast"]
        bxdt, c, z, y = (act[f"{a}.{key}"] for key in ("bxdt", "c", "z", "y"))
        dbxdt, dc, dz, dy = (act[f"{a}.d{key}"] for key in ("bxdt", "c", "z", "y"))
        linear_backward_weight(device, ddelta, y, g[f"{a}.out_proj.weight"])
        linear_backward_input(device, ddelta, p[f"{a}.out_proj.weight"], dy)
        partial = act[f"{a}.mixer_partial"]
        device.launch(mamba2_last_bwd.KERNEL, dy, bxdt, c, z, *self._vectors(p), EPS, dbxdt, dc, dz, partial)
        vectors_backward(device, partial, g[f"{a}.vectors"])
        linear_backward_weight(device, dbxdt, n, g[f"{a}.bxdt"])
        linear_backward_weight(device, dc, act[f"{a}.tail"], g[f"{a}.c"])
        linear_backward_weight(device, dz, act[f"{a}.last"], g[f"{a}.z"])
        with device.branch("tails", urgent=True):
            linear_backward_input(device, dc, p[f"{a}.c"], dtail)
            linear_backward_input(device, dz, p[f"{a}.z"], dlast)
        linear_backward_input(device, dbxdt, p[f"{a}.bxdt"], dn)
        device.join("tails")
        device.launch(tail_bwd.KERNEL, dtail, dlast, dn)

    def flops(self, rows: int) -> int:
        """As `MixerAll.flops`."""
        wide = self.width - self.inner - self.n
        all_rows = wide * self.d + self.n + self.heads + self.inner + TAPS * (self.channels - self.n)
        last = TAPS * self.n * (self.d + 1) + 2 * self.inner * self.d
        return 2 * rows * (self.window * all_rows + last)
