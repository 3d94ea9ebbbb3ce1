"""The hand-written backward pass: finite differences in float64, poisoned scratch, float32 against float64."""

import numpy as np
import pytest

from tests.nets.harness import CONFIGS, build, run, run_forward

EPS = 1e-5  # best step of central differences here
THRESHOLD = 1e-5  # right code stays below 4e-7, one wrong entry in 2048 gives 5e-5


def loss(t) -> float:
    run_forward(t)
    return float((t.act.out * t.act.d_out).sum())


@pytest.mark.parametrize("name", CONFIGS)
def test_each_parameter_along_five_directions(name):
    t = build(CONFIGS[name], rows=2)
    run(t)
    rng = np.random.default_rng(1)
    for entry in t.net.layout.entries:
        p, grad = t.p[entry.name], t.g[entry.name].copy()
        start = p.copy()
        for _ in range(5):
            direction = rng.standard_normal(entry.shape)
            if entry.name == "heads.weight":
                direction[246:] = 0
            if entry.name in ("heads.weight", "cfc.maps.weight", "cfc.backbone.weight"):
                direction[:, -3:] = 0
            direction /= np.linalg.norm(direction)
            p[...] = start + EPS * direction
            up = loss(t)
            p[...] = start - EPS * direction
            down = loss(t)
            p[...] = start
            numeric, exact = (up - down) / (2 * EPS), float((grad * direction).sum())
            scale = max(abs(exact), 1e-2 * np.linalg.norm(grad))
            assert abs(numeric - exact) / scale < THRESHOLD, entry.name
