"""Makes the golden vectors of the networks and of Adam from other people's code; needs the `oracles` extra.

    pip install 'foxhunt[oracles]' && python tests/golden/make_golden_nets.py

mamba2.npz: transformers' Mamba2Mixer (its PyTorch path), run in float64, with gradients by autograd.
cfc.npz:    ncps' CfCCell (not the CfC wrapper, which broadcasts timespans wrongly when batch = hidden), float64.
adam.npz:   torch.optim.Adam, 20 steps over given gradients, float64.
Every file holds `versions`, the libraries it was made with.
"""

from importlib.metadata import version
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from ncps.torch import CfCCell
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

HERE = Path(__file__).parent
VERSIONS = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "ncps", "numpy"))


def randomise(module: torch.nn.Module, rng: np.random.Generator) -> None:
    """Every parameter away from its start value, so that no gradient vanishes by symmetry."""
    for p in module.parameters():
        p.data = torch.from_numpy(rng.uniform(-0.5, 0.5, p.shape) + (p.ndim == 1) * 0.7)


def tensor(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


def grads(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"grad.{name}": p.grad.numpy() for name, p in module.named_parameters()}


def params(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"param.{name}": p.detach().numpy() for name, p in module.named_parameters()}


def save(name: str, **arrays) -> None:
    np.savez_compressed(HERE / name, versions=np.array(VERSIONS), **arrays)
    print(f"{name}: {(HERE / name).stat().st_size} bytes ({VERSIONS})")


def make_mamba2() -> None:
    """D 8, state 5, two heads of 8, chunk = K = 11; gradients of all rows, and of the last row alone."""
    rng = np.random.default_rng(1)
    config = Mamba2Config(
        hidden_size=8,
        state_size=5,
        num_heads=2,
        head_dim=8,
        expand=2,
        n_groups=1,
        conv_kernel=4,
        chunk_size=11,
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-5,
        num_hidden_layers=1,
        vocab_size=3,
    )
    mixer = Mamba2Mixer(config, 0).double()
    randomise(mixer, rng)
    x, weight = tensor(rng, 3, 11, 8), tensor(rng, 3, 11, 8).detach()
    out: dict[str, np.ndarray] = {"x": x.detach().numpy(), "dy": weight.numpy()} | params(mixer)
    # The mixer casts to float32 inside; for a float64 oracle those casts are made to give float64.
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        for case, rows in (("all", slice(None)), ("last", slice(-1, None))):
            mixer.zero_grad()
            x.grad = None
            y = mixer(x)
            assert y.dtype is torch.float64
            (y * weight)[:, rows].sum().backward()
            out |= {f"{case}.y": y.detach().numpy(), f"{case}.dx": x.grad.numpy()}
            out |= {f"{case}.{name}": g.copy() for name, g in grads(mixer).items()}
    save("mamba2.npz", **out)


def make_cfc() -> None:
    rng = np.random.default_rng(2)
    cell = CfCCell(input_size=14, hidden_size=6, mode="default", backbone_units=10, backbone_layers=1).double()
    randomise(cell, rng)
    x, h_prev, dh = tensor(rng, 5, 14), tensor(rng, 5, 6).detach(), tensor(rng, 5, 6).detach()
    ts = torch.from_numpy(rng.uniform(0.1, 3, 5))
    h, _ = cell(x, h_prev, ts[:, None])
    (h * dh).sum().backward()
    arrays = {"x": x.detach(), "h_prev": h_prev, "ts": ts, "dh": dh, "h": h.detach(), "dx": x.grad}
    save("cfc.npz", **{k: v.numpy() for k, v in arrays.items()}, **params(cell), **grads(cell))


def make_adam() -> None:
    rng = np.random.default_rng(3)
    lr, betas, eps, steps, n = 2e-3, (0.9, 0.99), 1e-8, 20, 37
    p = torch.nn.Parameter(torch.from_numpy(rng.standard_normal(n)))
    # Over ten orders of magnitude, and one zero, so that eps matters.
    g = rng.standard_normal((steps, n)) * 10.0 ** rng.uniform(-9, 1, n)
    g[:, 0] = 0
    start, history = p.detach().numpy().copy(), []
    optimizer = torch.optim.Adam([p], lr=lr, betas=betas, eps=eps)
    for row in g:
        p.grad = torch.from_numpy(row.copy())
        optimizer.step()
        history.append(p.detach().numpy().copy())
    state = optimizer.state[p]
    save(
        "adam.npz",
        lr=np.float64(lr),
        betas=np.array(betas),
        eps=np.float64(eps),
        start=start,
        grads=g,
        params=np.array(history),
        m=state["exp_avg"].numpy(),
        v=state["exp_avg_sq"].numpy(),
    )


if __name__ == "__main__":
    make_mamba2()
    make_cfc()
    make_adam()
