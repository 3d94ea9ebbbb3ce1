"""A network with its arrays, for the tests: random inputs, random output gradient, parameters away from their start."""

from types import SimpleNamespace

import numpy as np

from trainer.config import NetConfig
from trainer.device.base import NumpyDevice
from trainer.device.fields import allocate
from trainer.nets.heads import USED
from trainer.nets.network import Network

FEATURES = 7
WIDE = {"two layers, not folded": 9}  # features of those that have others
CONFIGS = {
    "one layer, one head": dict(d_model=8, layers=1, window=5, d_state=4, headdim=16, hidden=8, backbone=12),
    "one layer, four heads": dict(d_model=8, layers=1, window=4, d_state=5, headdim=4, hidden=9, backbone=8),
    "two layers, two heads": dict(d_model=12, layers=2, window=9, d_state=6, headdim=12, hidden=8, backbone=10),
    "three layers, K=64": dict(d_model=8, layers=3, window=64, d_state=4, headdim=4, hidden=8, backbone=8),
    "two layers, not folded": dict(d_model=8, layers=2, window=6, d_state=4, headdim=4, hidden=8, backbone=8),
}


def build(config: dict, rows: int = 3, real=np.float64, seed: int = 0, backward: bool = True) -> SimpleNamespace:
    """Start values plus noise, so that no gradient is zero by symmetry; all gradients and scratch are NaN."""
    rng = np.random.default_rng(seed)
    features = next((n for name, n in WIDE.items() if CONFIGS[name] == config), FEATURES)
    net, device = Network(NetConfig(**config), features), NumpyDevice()
    fields = [*net.weight_fields("t.weights"), *net.fields("t", rows, rows if backward else 0)]
    store = allocate(device, fields, real)
    act = store.ns("t")
    for array in store.arrays.values():
        array.fill(np.nan)
    windows = rng.standard_normal((rows, config["window"], features)).astype(real)
    put_windows(net, act, windows)
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
        windows=windows,
        params=flat,
        grads=grads,
        p=net.weights(flat, store.ns("t.weights")),
        g=net.layout.views(grads),
    )


def _padded(tensor: np.ndarray) -> np.ndarray:
    return np.pad(tensor.reshape(-1), (0, -tensor.size % 64))


def put_windows(net: Network, act, windows: np.ndarray) -> None:
    """As the kernel that gathers them puts them into `x`; what is in front of them is the network's."""
    end = net.first + windows.shape[2]
    act.x[..., net.first : end] = windows
    act.x[..., end:] = 0
    act.x[..., end : end + 1] = 1


def run_forward(t: SimpleNamespace) -> None:
    t.net.prepare(t.device, t.p)
    t.net.forward(t.device, t.p, t.act)


def run(t: SimpleNamespace) -> None:
    run_forward(t)
    t.net.backward(t.device, t.p, t.g, t.act)
