"""A network with its arrays, for the tests: random inputs, random output gradient, parameters away from their start."""

from types import SimpleNamespace

import numpy as np

from trainer.config import NetConfig
from trainer.device.base import NumpyDevice
from trainer.device.fields import allocate
from trainer.nets.heads import USED
from trainer.nets.network import Network

FEATURES = 7
CONFIGS = {
    "one layer, one head": dict(d_model=8, layers=1, window=5, d_state=4, headdim=16, hidden=8, backbone=12),
    "one layer, four heads": dict(d_model=8, layers=1, window=4, d_state=5, headdim=4, hidden=9, backbone=8),
    "two layers, two heads": dict(d_model=12, layers=2, window=9, d_state=6, headdim=12, hidden=8, backbone=10),
    "three layers, K=64": dict(d_model=8, layers=3, window=64, d_state=4, headdim=8, hidden=8, backbone=8),
}


def build(config: dict, rows: int = 3, real=np.float64, seed: int = 0, backward: bool = True) -> SimpleNamespace:
    """Start values plus noise, so that no gradient is zero by symmetry; all gradients and scratch are NaN."""
    rng = np.random.default_rng(seed)
    net, device = Network(NetConfig(**config), FEATURES), NumpyDevice()
    store = allocate(device, net.fields("t", rows, backward), real)
    act = store.ns("t")
    for array in store.arrays.values():
        array.fill(np.nan)
    act.x[...] = rng.standard_normal(act.x.shape)
    act.private[...] = rng.standard_normal(act.private.shape)
    act.h_prev[...] = rng.uniform(-1, 1, act.h_prev.shape)
    act.ts[...] = rng.uniform(0.2, 3, act.ts.shape)
    if backward:
        act.d_out[...] = 0
        act.d_out[:, :USED] = rng.standard_normal((rows, USED)) / 16
    flat = net.layout.init(seed).astype(real)
    noise = net.layout.views(np.zeros_like(flat))
    for entry in net.layout.entries:
        noise[entry.name][...] = 0.1 * rng.standard_normal(entry.shape)
    noise["heads.padding"][...] = 0
    for name in ("cfc.backbone.weight", "cfc.maps.weight", "heads.weight"):
        noise[name][:, -3:] = 0
    flat += np.concatenate([_padded(noise[e.name]) for e in net.layout.entries]).astype(real)
    grads = np.full_like(flat, np.nan)
    return SimpleNamespace(
        net=net,
        device=device,
        store=store,
        act=act,
        params=flat,
        grads=grads,
        p=net.layout.views(flat),
        g=net.layout.views(grads),
    )


def _padded(tensor: np.ndarray) -> np.ndarray:
    return np.pad(tensor.reshape(-1), (0, -tensor.size % 64))


def run_forward(t: SimpleNamespace) -> None:
    t.net.forward(t.device, t.p, t.act)


def run(t: SimpleNamespace) -> None:
    run_forward(t)
    t.net.backward(t.device, t.p, t.g, t.act)
