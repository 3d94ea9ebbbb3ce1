"""The mixer and the cell against other people's code: golden vectors of transformers' Mamba2Mixer and ncps' CfCCell."""

from pathlib import Path

import numpy as np
import pytest

from kernels import window_tail
from trainer.config import N_PRIVATE, NetConfig
from trainer.device.base import NumpyDevice
from trainer.device.fields import Namespace, allocate
from trainer.nets.arena import ParamLayout
from trainer.nets.cfc import CfCCell
from trainer.nets.layers import BIAS_COLUMNS
from trainer.nets.mamba2 import MixerAll, MixerLast

GOLDEN = Path(__file__).parents[1] / "golden"
D, N, K, ROWS, INNER = 8, 5, 11, 3, 16
CLOSE = dict(rtol=1e-9, atol=1e-12)


def ours(golden, key: str) -> dict[str, np.ndarray]:
    """A published tensor set in our order: in_proj rows z, C, B, x, dt; conv channels C, B, x, taps first."""
    channels = np.r_[INNER + N : INNER + 2 * N, INNER : INNER + N, 0:INNER]  # published: x, B, C
    rows = np.r_[0:INNER, INNER + channels, 2 * INNER + 2 * N : 2 * INNER + 2 * N + 2]
    return {
        "in_proj.weight": golden[f"{key}.in_proj.weight"][rows],
        "conv.weight": golden[f"{key}.conv1d.weight"][channels, 0].T,
        "conv.bias": golden[f"{key}.conv1d.bias"][channels],
        "dt_bias": golden[f"{key}.dt_bias"],
        "A_log": golden[f"{key}.A_log"],
        "D": golden[f"{key}.D"],
        "gate_norm.weight": golden[f"{key}.norm.weight"],
        "out_proj.weight": golden[f"{key}.out_proj.weight"],
    }


@pytest.mark.parametrize(("case", "kind"), [("all", MixerAll), ("last", MixerLast)])
def test_mixer_equals_transformers(case, kind):
    golden = np.load(GOLDEN / "mamba2.npz")
    cfg = NetConfig(d_model=D, layers=1, window=K, d_state=N, headdim=8, hidden=8, backbone=8)
    mixer, device = kind(cfg, 0), NumpyDevice()
    layout = ParamLayout(mixer.entries())
    mixer.add_blocks(layout)
    p, g = layout.views(np.zeros(layout.size)), layout.views(np.full(layout.size, np.nan))
    for name, value in ours(golden, "param").items():
        p[f"layers.0.{name}"][...] = value
    act = allocate(device, mixer.fields("t", ROWS, ROWS), np.float64).ns("t")

    if case == "last":
        device.launch(window_tail.KERNEL, golden["x"], *mixer.tails(act))
    mixer.forward(device, p, act, golden["x"])
    rows = slice(None) if case == "all" else -1
    np.testing.assert_allclose(act["layers.0.delta"], golden[f"{case}.y"][:, rows], **CLOSE)

    dn = np.full((ROWS, K, D), np.nan)
    ddelta = np.ascontiguousarray(golden["dy"][:, rows])
    mixer.backward(device, p, g, act, golden["x"], ddelta, dn)
    np.testing.assert_allclose(dn, golden[f"{case}.dx"], **CLOSE)
    for name, want in ours(golden, f"{case}.grad").items():
        np.testing.assert_allclose(g[f"layers.0.{name}"], want, err_msg=name, **CLOSE)


def affine(golden, key: str, *names: str) -> np.ndarray:
    """Published weights and biases, one map after the other, as one affine matrix [out, in + 4]."""
    parts = [np.c_[golden[f"{key}.{n}.weight"], golden[f"{key}.{n}.bias"]] for n in names]
    return np.pad(np.concatenate(parts), ((0, 0), (0, BIAS_COLUMNS - 1)))


def test_cell_equals_ncps():
    golden = np.load(GOLDEN / "cfc.npz")
    d, hidden, units = golden["x"].shape[1] - N_PRIVATE, golden["h"].shape[1], 10
    cfg = NetConfig.model_construct(d_model=d, hidden=hidden, backbone=units)
    cell, device = CfCCell(cfg), NumpyDevice()
    layout = ParamLayout(cell.entries())
    p, g = layout.views(np.zeros(layout.size)), layout.views(np.full(layout.size, np.nan))
    maps = ("ff1", "ff2", "time_a", "time_b")
    p["cfc.backbone.weight"][...] = affine(golden, "param", "backbone.0")
    p["cfc.maps.weight"][...] = affine(golden, "param", *maps)
    act = {f.name: np.full(f.shape, np.nan) for f in cell.fields("t", len(golden["ts"]), len(golden["ts"]))}
    act["t.enc"] = golden["x"][:, :d].copy()
    act["t.private"][...] = golden["x"][:, d:]
    act["t.h_prev"][...], act["t.ts"][...] = golden["h_prev"], golden["ts"]
    act["t.dh_head"][:, :hidden] = golden["dh"]
    space = Namespace("t", act)

    cell.forward(device, p, space)
    np.testing.assert_allclose(space.h, golden["h"], **CLOSE)
    cell.backward(device, p, g, space)
    np.testing.assert_allclose(space.dcat[:, : d + N_PRIVATE], golden["dx"], **CLOSE)
    np.testing.assert_allclose(g["cfc.backbone.weight"], affine(golden, "grad", "backbone.0"), **CLOSE)
    np.testing.assert_allclose(g["cfc.maps.weight"], affine(golden, "grad", *maps), **CLOSE)
