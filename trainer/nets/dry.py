"""Whether a GPU can launch this network's kernels at all, known before anything is allocated on it.

Only the network's kernels ask for more than a few bytes of shared memory, and never by the number of windows: so a pass
forward and back over one window, on a device that runs nothing, meets all that a run will ask for.
"""

from __future__ import annotations

import structlog

from trainer.config import NetConfig
from trainer.device import Device, Field, allocate
from trainer.device.launches import DryDevice
from trainer.nets.network import Network

log = structlog.get_logger()


def dry_pass(cfg: NetConfig, n_features: int, limit: int | None) -> DryDevice:
    """What one pass launches where a block gets `limit` bytes of shared memory."""
    net, device = Network(cfg, n_features), DryDevice(limit)
    weights = [Field(f"net.{name}", (net.layout.size,), kind="scratch") for name in ("param", "grad")]
    store = allocate(device, [*weights, *net.weight_fields("net"), *net.fields("pass", 1, backward=1)])
    params, grads = net.weights(store["net.param"], store.ns("net")), net.layout.views(store["net.grad"])
    net.prepare(device, params)
    net.forward(device, params, store.ns("pass"))
    net.backward(device, params, grads, store.ns("pass"))
    return device


def require_launches(device: Device, cfg: NetConfig, n_features: int) -> None:
    """Raises UsageError when a kernel asks for more shared memory than a block gets on this GPU; logs which kernels
    take their general variant."""
    if device.shared_limit is None:
        return
    dry = dry_pass(cfg, n_features, device.shared_limit)
    for error in dry.refused.values():
        raise error
    if slower := dry.left_out():
        had = f"{device.shared_limit >> 10} KiB of shared memory a block"
        log.info("kernels in their general variant, which is slower", kernels=", ".join(slower), this_gpu_has=had)
