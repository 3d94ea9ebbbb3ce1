"""The parameter arena: where tensors lie, groups, views, and start values against the published recipes."""

import itertools

import numpy as np
import pytest

from kernels.heads import N_ACTIONS, N_ATOMS
from kernels.isv import GROUPS
from trainer.config import NetConfig, load_config
from trainer.nets.arena import Entry, ParamLayout, constant
from trainer.nets.heads import AUX, HOLD, POLICY, USED, VALUE, WIDTH, Q
from trainer.nets.network import Network

PROFILES = ("cpu-demo", "small", "seed")


@pytest.fixture(scope="module", params=PROFILES)
def net(request):
    return Network(load_config(request.param).net, 56)


def test_tensors_lie_apart_in_order_and_aligned(net):
    end = 0
    for entry in net.layout.entries:
        assert entry.offset % 64 == 0 and end <= entry.offset < end + 64
        end = entry.offset + entry.size
    assert net.layout.size % 64 == 0 and end <= net.layout.size < end + 64


def test_segments_cover_the_arena_one_a_group_in_bus_order(net):
    segments = net.layout.segments
    assert [group for _, _, group in segments] == list(GROUPS)
    assert segments[0][0] == 0 and segments[-1][1] == net.layout.size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(segments))
    assert all(start % 4 == 0 for start, _, _ in segments)


def test_segments_are_the_heads_rows(net):
    flat = np.zeros(net.layout.size)
    views = net.layout.views(flat)
    for index, (start, stop, _) in enumerate(net.layout.segments):
        flat[start:stop] = index
    weight = views["heads.weight"]
    for rows, index in ((Q, 1), (POLICY, 2), (VALUE, 3), (AUX, 4)):
        assert (weight[rows] == index).all()
    assert all((views[e.name] == 0).all() for e in net.layout.entries if e.name != "heads.weight")


def test_heads_follow_the_output_map():
    assert (Q.start, Q.stop, POLICY.stop, VALUE.stop, AUX.stop) == (0, N_ACTIONS * N_ATOMS, 242, 243, 246)
    assert USED == 246 and WIDTH == 256


def test_views_are_views_and_blocks_cover_their_tensors(net):
    flat = np.zeros(net.layout.size, np.float32)
    views = net.layout.views(flat)
    views["layers.0.vectors"][:] = 1
    for name in ("conv.weight", "conv.bias", "dt_bias", "A_log", "D", "gate_norm.weight"):
        assert (views[f"layers.0.{name}"] == 1).all()
    views["layers.0.z"][:], views["layers.0.c"][:], views["layers.0.bxdt"][:] = 2, 3, 4
    inner, n = 2 * net.cfg.d_model, net.cfg.d_state
    rows = views["layers.0.in_proj.weight"][:, 0]
    assert (rows[:inner] == 2).all() and (rows[inner : inner + n] == 3).all() and (rows[inner + n :] == 4).all()
    assert all(view.flags.c_contiguous for view in views.values())


def test_sizes_of_the_profiles():
    """The sizes that the profiles' figures are quoted for: 1.03 M parameters, 4 MB of encoder; 0.37 M for `small`."""
    seed, small = (Network(load_config(name).net, 56).layout for name in ("seed", "small"))
    start, stop, group = seed.segments[0]
    assert group == "encoder" and round((stop - start) * 4 / 1e6) == 4
    assert sum(e.size for e in seed.entries) == pytest.approx(1.03e6, rel=0.03)
    assert sum(e.size for e in small.entries) == pytest.approx(0.37e6, rel=0.03)


def test_start_values(net):
    p = net.layout.views(net.layout.init(3))
    for layer in net.encoder.layers:
        a = np.exp(p[f"{layer.name}.A_log"].astype(np.float64))
        dt = np.log1p(np.exp(p[f"{layer.name}.dt_bias"].astype(np.float64)))
        assert ((1 <= a) & (a < 16.001)).all() and ((0.999e-3 < dt) & (dt < 0.1001)).all()
        assert (p[f"{layer.name}.D"] == 1).all() and (p[f"{layer.name}.gate_norm.weight"] == 1).all()
        assert np.abs(p[f"{layer.name}.conv.weight"]).max() <= 0.5
        spread = p[f"{layer.name}.in_proj.weight"].std() * np.sqrt(3 * net.cfg.d_model)
        assert spread == pytest.approx(1, rel=0.05)  # uniform with bound 1 / sqrt(D)
    heads, h = p["heads.weight"], net.cfg.hidden
    assert heads[POLICY, h].tolist() == [net.cfg.hold_bias if a == HOLD else 0 for a in range(N_ACTIONS)]
    assert (heads[USED:] == 0).all() and (heads[:, h + 1 :] == 0).all()
    assert 0 < np.abs(heads[Q]).max() <= 0.01 / np.sqrt(h)
    for name in ("cfc.backbone.weight", "cfc.maps.weight"):
        assert (p[name][:, -4:] == 0).all()


def test_start_values_are_a_pure_function_of_the_seed():
    layout = Network(load_config("cpu-demo").net, 56).layout
    first, again, other = layout.init(1), layout.init(1), layout.init(2)
    assert first.dtype == np.float32 and (first == again).all() and (first != other).mean() > 0.8
    # No two tensors share their draws: the columns of the same length differ.
    weight = layout.views(first)
    assert not np.array_equal(weight["layers.0.z"][:64, :32], weight["layers.0.bxdt"][:64, :32])


def test_refuses_groups_out_of_order_and_split_groups():
    def entry(name, group):
        return Entry(name, (4,), constant(0.0), group)

    with pytest.raises(AssertionError, match="out of order"):
        ParamLayout([entry("a", "policy"), entry("b", "q")])
    with pytest.raises(AssertionError, match="not contiguous"):
        ParamLayout([entry("a", "encoder"), entry("b", "q"), entry("c", "encoder")])
    with pytest.raises(AssertionError, match="share a name"):
        ParamLayout([entry("a", "encoder"), entry("a", "encoder")])


def test_views_refuse_an_arena_of_another_layout():
    layout = Network(NetConfig(d_model=8, layers=1, headdim=8, hidden=8, backbone=8), 5).layout
    with pytest.raises(AssertionError, match="layout of"):
        layout.views(np.zeros(layout.size + 64))
