"""Kill -9 in the middle of a validation pass, in processes of their own: the end is that of a run left alone."""

from tests.learn import child
from trainer.learn.metrics import read_metrics

STEPS, EVERY, VALIDATE = 60, 20, 35  # at step 40 the pass begun at 35 is under way; its result is due at 70


def test_a_killed_run_ends_as_one_left_alone(tmp_path):
    processes = [child.start("cpu", tmp_path / str(i), STEPS, EVERY, VALIDATE) for i in range(2)]
    killed = child.start("cpu", tmp_path / "killed", STEPS, EVERY, VALIDATE, halt=47)
    child.kill_when_halted(killed)
    assert not (tmp_path / "killed" / f"checkpoint-{STEPS}.bin").exists()
    resumed = child.end(child.start("cpu", tmp_path / "killed", STEPS, EVERY, VALIDATE))
    straight, again = map(child.end, processes)
    assert straight == again == {"step": STEPS, "attempt": 0, "state": straight["state"]}
    assert resumed == straight | {"attempt": 1}
    lines, want = (
        [(x["step"], x["l_q"], x.get("val_step"), x.get("val_net_per_1k")) for x in read_metrics(tmp_path / name)]
        for name in ("killed", "0")
    )
    assert lines == want and lines[-1][2] == VALIDATE
