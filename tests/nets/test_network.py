"""The network as a whole: fields, the encode/head split, independent windows, first outputs, recording, flops."""

import numpy as np
import pytest

from tests.nets.harness import CONFIGS, FEATURES, build, put_windows, run, run_forward
from trainer.config import NetConfig, load_config
from trainer.device.fields import allocate
from trainer.device.recording import RecordingDevice
from trainer.nets.dry import dry_pass
from trainer.nets.heads import AUX, HOLD, POLICY, VALUE, Q
from trainer.nets.network import Network

TWO = CONFIGS["two layers, two heads"]


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_of_the_interface(name):
    config, rows = CONFIGS[name], 3
    t = build(config, rows)
    run(t)
    hidden, d = config["hidden"], config["d_model"]
    wide = 2 * d + 8 if t.net.first else t.windows.shape[2]  # y of the first layer, then 7 features and a 1
    shapes = {"x": (rows, config["window"], wide), "private": (rows, 8), "h_prev": (rows, hidden), "ts": (rows,)}
    shapes |= {"enc": (rows, d), "h": (rows, hidden), "out": (rows, 256), "d_out": (rows, 256)}
    assert {key: t.act[key].shape for key in shapes} == shapes


def test_forward_fields_hold_nothing_of_the_backward_pass():
    net = Network(NetConfig(**TWO), FEATURES)
    forward = {f.name for f in net.fields("t", 2)}
    both = {f.name for f in net.fields("t", 2, backward=2)}
    assert forward < both and "t.d_out" not in forward


def test_windows_come_first_in_all_that_a_mixer_keeps():
    """So a pass over many windows can be read and gone back through in runs of windows, each of them contiguous."""
    net = Network(NetConfig(**TWO), FEATURES)
    found = [f for layer in net.encoder.layers for f in layer.fields("t", 7, backward=7)]
    assert len(found) > 10 and [(f.name, f.shape) for f in found if f.shape[0] != 7] == []


@pytest.mark.parametrize("features, launched", [(56, "stem_project"), (150, "stem_scale")])
def test_the_first_product_is_part_of_a_launch_where_the_features_are_few(features, launched):
    kernels = {kernel for kernel, _ in dry_pass(load_config("seed").net, features, None).launches}
    assert kernels & {"stem_project", "stem_scale"} == {launched}


def test_windows_do_not_touch_each_other():
    t, other = build(TWO, rows=3), build(TWO, rows=3)
    other.windows[1] += 1
    put_windows(other.net, other.act, other.windows)
    run_forward(t)
    run_forward(other)
    same = (t.act.out == other.act.out).all(axis=1)
    assert same.tolist() == [True, False, True]


def test_head_steps_through_time_over_one_encoding():
    """`encode` once for many windows, then `head` row after row with its own h: what evaluation does."""
    t = build(TWO, rows=3)
    t.act.h_prev.fill(0)
    t.net.encode(t.device, t.p, t.act)
    enc, outs = t.act.enc.copy(), []
    for _ in range(2):
        t.net.head(t.device, t.p, t.act)
        outs.append(t.act.out.copy())
        t.act.h_prev[...] = t.act.h
    np.testing.assert_array_equal(enc, t.act.enc)
    assert (outs[0] != outs[1])[:, : AUX.stop].any()
    run_forward(t)
    again = t.act.out.copy()
    t.net.head(t.device, t.p, t.act)
    np.testing.assert_array_equal(again, t.act.out)


def test_last_layer_equals_the_full_computation():
    """The same parameters once as the last layer, once under the full mixer: the last row of the stream is the same."""
    t = build(TWO, rows=2)
    run_forward(t)
    layer, full = t.net.encoder.layers[1], type(t.net.encoder.layers[0])(NetConfig(**TWO), 1)
    act = allocate(t.device, full.fields("f", 2, 0), np.float64).ns("f")
    full.forward(t.device, t.p, act, t.act["n.1"])
    np.testing.assert_allclose(act[f"{layer.name}.delta"][:, -1], t.act[f"{layer.name}.delta"], rtol=1e-10, atol=1e-13)


def test_first_policy_prefers_hold_and_q_knows_nothing():
    net = Network(load_config("cpu-demo").net, FEATURES)
    t = build(load_config("cpu-demo").net.model_dump(), rows=8, real=np.float32)
    t.params[...] = net.layout.init(0)
    run_forward(t)
    policy = t.act.out[:, POLICY]
    assert (policy.argmax(axis=1) == HOLD).all()
    assert np.abs(policy[:, HOLD] - net.cfg.hold_bias).max() < 0.1
    assert np.abs(np.delete(policy, HOLD, axis=1)).max() < 0.1
    assert np.abs(t.act.out[:, Q]).max() < 0.1 and np.abs(t.act.out[:, VALUE]).max() < 1


def test_recorded_region_equals_eager_at_every_step():
    """Forward and backward as a captured graph would run them: pointers frozen, nothing allocated, nothing read."""
    eager, source = build(TWO, rows=2, real=np.float32), np.random.default_rng(5)
    device = RecordingDevice()
    store = allocate(device, [*eager.net.weight_fields("w"), *eager.net.fields("t", 2, 2)])
    params, grads = device.empty(eager.params.shape, np.float32), device.empty(eager.params.shape, np.float32)
    params[...] = eager.params
    grads[...] = 0
    p, g, act = eager.net.weights(params, store.ns("w")), eager.net.layout.views(grads), store.ns("t")

    def body() -> None:
        eager.net.prepare(device, p)
        eager.net.forward(device, p, act)
        eager.net.backward(device, p, g, act)

    region = device.region(body, "net")
    for step in range(5):
        put_windows(eager.net, eager.act, source.standard_normal(eager.windows.shape))
        act.x[...] = eager.act.x
        for key in ("private", "h_prev", "ts"):
            eager.act[key][...] = source.standard_normal(eager.act[key].shape)
            act[key][...] = eager.act[key]
        act.d_out[...] = eager.act.d_out
        run(eager)
        region()
        for entry in eager.net.layout.entries:
            np.testing.assert_array_equal(g[entry.name], eager.g[entry.name], err_msg=f"{entry.name}, step {step}")
        np.testing.assert_array_equal(act.out, eager.act.out)


def test_flops_grow_with_rows_and_count_the_pruned_layer():
    cfg = load_config("seed").net
    net = Network(cfg, 56)
    assert net.flops(2048) == 2 * net.flops(1024)
    full, last = (layer.flops(1024) for layer in net.encoder.layers)
    assert 0.3 < last / full < 0.5  # 584 of 1160 columns of in_proj, almost nothing of the rest
    gemm = 2 * 1024 * 32 * (1160 * 256 + 512 * 256)
    assert full == pytest.approx(gemm, rel=0.1)
