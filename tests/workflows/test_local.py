"""The local runner on small workflows: order, loops, parameters, retries, outputs, refusals."""

import asyncio
import json
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.conftest import run_here, template, workflow
from workflows import nodes
from workflows.errors import UnsupportedField, UsageError, WorkflowError
from workflows.fields import check_workflow
from workflows.local import LocalRunner
from workflows.nodes import Attempt, Result, group
from workflows.pods import comes_back, items_of, seconds, wait_before
from workflows.substitute import move_mounts, resolve
from workflows.templates import RETRY_EXPRESSION

RETRY = {"limit": "5", "retryPolicy": "Always", "expression": RETRY_EXPRESSION, "backoff": {"duration": "10s"}}


def phases(outcome: Any) -> dict[str, str]:
    return {node.name: node.phase for node in outcome.nodes}


def with_args(name: str, body: str, *args: str, inputs: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    part = template(name, body, inputs={"parameters": [{"name": n} for n in inputs]}, **more)
    part["container"]["args"] += args
    return part


def test_parameters_flow_from_task_to_task(tmp_path: Path) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    out = {"parameters": [{"name": "x", "valueFrom": {"path": "/out/x"}}]}
    mounts = {"volumes": [{"name": "o", "emptyDir": {}}], "outputs": out}
    first = with_args(
        "first", write, "/out/x", "{{workflow.parameters.word}}-{{inputs.parameters.n}}", inputs=("n",), **mounts
    )
    first["container"]["volumeMounts"] = [{"name": "o", "mountPath": "/out"}]
    second = with_args("second", write, str(tmp_path / "seen"), "{{inputs.parameters.x}}", inputs=("x",))
    tasks = [
        {"name": "a", "template": "first", "arguments": {"parameters": [{"name": "n", "value": "7"}]}},
        {
            "name": "b",
            "template": "second",
            "depends": "a",
            "arguments": {"parameters": [{"name": "x", "value": "{{tasks.a.outputs.parameters.x}}"}]},
        },
    ]
    tree = workflow([first, second], tasks, arguments={"parameters": [{"name": "word", "value": "old"}]})
    assert run_here(tree, tmp_path / "logs", {"word": "new"}).exit_code == 0
    assert (tmp_path / "seen").read_text() == "new-7"


def test_user_values_are_never_taken_for_mounts(tmp_path: Path) -> None:
    """A user's file under /tmp stays there although the pod has a volume of that name."""
    assert move_mounts("/tmp/x", {"/tmp": "/elsewhere"}) == "/elsewhere/x"
    assert move_mounts("/tmpx", {"/tmp": "/elsewhere"}) == "/tmpx"
    part = with_args("p", "import sys; print(sys.argv[1])", "{{workflow.parameters.file}}")
    part |= {"volumes": [{"name": "t", "emptyDir": {}}]}
    part["container"]["volumeMounts"] = [{"name": "t", "mountPath": "/tmp"}]
    tree = workflow([part], [{"name": "a", "template": "p"}], arguments={"parameters": [{"name": "file"}]})
    outcome = run_here(tree, tmp_path / "logs", {"file": "/tmp/mine.csv"})
    assert "/tmp/mine.csv" in Path(outcome.nodes[0].attempts[0].log).read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ({"withItems": ["a", 2, True]}, ["a", "2", "true"]),
        ({"withParam": '["x", "y"]'}, ["x", "y"]),
        ({"withSequence": {"count": "3"}}, ["0", "1", "2"]),
        ({"withSequence": {"count": "2", "start": "5", "format": "f%02d"}}, ["f05", "f06"]),
        ({"withSequence": {"start": "1", "end": "3"}}, ["1", "2", "3"]),
        ({"withSequence": {"start": "3", "end": "2"}}, ["3", "2"]),
    ],
)
def test_loops(tmp_path: Path, loop: dict[str, Any], words: list[str]) -> None:
    part = with_args("p", "import sys; print(sys.argv[1])", "{{inputs.parameters.i}}", inputs=("i",))
    arguments = {"parameters": [{"name": "i", "value": "{{item}}"}]}
    outcome = run_here(workflow([part], [{"name": "t", "template": "p", "arguments": arguments, **loop}]), tmp_path)
    assert sorted(node.inputs["i"] for node in outcome.nodes) == sorted(words)
    assert [node.name for node in outcome.nodes] == [f"t-{word}" for word in words]


def test_items_with_fields_and_a_bad_list(tmp_path: Path) -> None:
    assert items_of({"name": "t"}, {}) is None
    with pytest.raises(ValueError, match="not a list"):
        items_of({"name": "t", "withParam": '{"a": 1}'}, {})
    part = with_args("p", "pass", inputs=("i",))
    task = {"name": "t", "template": "p", "withParam": '[{"fold": 2, "label": "x"}]'}
    task["arguments"] = {"parameters": [{"name": "i", "value": "{{item.fold}}:{{item.label}}"}]}
    outcome = run_here(workflow([part], [task]), tmp_path)
    assert [(n.name, n.inputs["i"]) for n in outcome.nodes] == [("t-2", "2:x")]
    task["withParam"] = "nonsense"
    with pytest.raises(WorkflowError, match="task t"):
        run_here(workflow([part], [task]), tmp_path)


@pytest.mark.parametrize(
    ("depends", "runs"),
    [
        ("bad", False),
        ("good && bad.Failed", True),
        ("!good", False),
        ("bad.Succeeded || good.Succeeded", True),
        ("loop.AnySucceeded && loop.Failed", True),
        ("loop.AllFailed", False),
        ("allbad.AllFailed", True),
        ("left.Omitted", True),
        ("none.Skipped && none", True),
        ("bad.Errored || bad.Daemoned", False),
    ],
)
def test_depends(tmp_path: Path, depends: str, runs: bool) -> None:
    part = with_args("p", "import sys; sys.exit(int(sys.argv[1]))", "{{inputs.parameters.c}}", inputs=("c",))

    def task(name: str, code: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "template": "p", "arguments": {"parameters": [{"name": "c", "value": code}]}, **more}

    tasks = {
        "good": task("good", "0"),
        "bad": task("bad", "1"),
        "loop": task("loop", "{{item}}", withItems=[0, 1]),
        "allbad": task("allbad", "{{item}}", withItems=[1, 2]),
        "none": task("none", "0", withItems=[]),
        "left": task("left", "0", depends="bad"),
    }
    wanted = [t for name, t in tasks.items() if name in depends or (name == "bad" and "left" in depends)]
    outcome = run_here(workflow([part], [*wanted, task("last", "0", depends=depends)]), tmp_path)
    assert ("last" in phases(outcome)) == runs


def test_fan_out_results() -> None:
    good, bad = Result(nodes.SUCCEEDED, {"wr": "0.6"}), Result(nodes.FAILED, {"wr": "0.1"})
    assert group([good, bad]).phase == nodes.FAILED
    assert json.loads(group([good, bad, good]).outputs["wr"]) == ["0.6", "0.6"]
    assert group([]).phase == nodes.SKIPPED
    assert group([]).answers("Skipped") and not group([]).answers("AllFailed")


def count_then_exit(folder: Path, codes: list[int]) -> str:
    return (
        f"import os, pathlib, sys; p = pathlib.Path({str(folder / 'n')!r}); "
        "n = int(p.read_text()) if p.exists() else 0; p.write_text(str(n + 1)); "
        f"code = {codes}[min(n, {len(codes) - 1})]; "
        "print('last', os.environ['LAST'], os.environ['RETRIES']); sys.stdout.flush(); "
        "os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)"
    )


def retried(folder: Path, codes: list[int], **retry: Any) -> Any:
    part = template("p", count_then_exit(folder, codes), retryStrategy={**RETRY, **retry})
    part["container"]["env"] = [
        {"name": "LAST", "value": "{{lastRetry.exitCode}}/{{lastRetry.status}}/{{lastRetry.message}}"},
        {"name": "RETRIES", "value": "{{retries}}"},
    ]
    return run_here(workflow([part], [{"name": "a", "template": "p"}]), folder / "logs")


def test_interruptions_are_retried_and_told(tmp_path: Path) -> None:
    outcome = retried(tmp_path, [75, -9, 0])
    assert outcome.exit_code == 0
    assert [a.exit_code for a in outcome.nodes[0].attempts] == [75, 137, 0]
    said = [Path(a.log).read_text().splitlines()[-1] for a in outcome.nodes[0].attempts]
    assert said == [
        "last 0// 0",
        "last 75/Failed/exit code 75 1",
        "last 137/Failed/killed by SIGKILL (exit code 137) 2",
    ]
    assert [Path(a.log).name for a in outcome.nodes[0].attempts] == ["a-1.log", "a-2.log", "a-3.log"]


@pytest.mark.parametrize("code", [1, 2, 3, 76])
def test_mistakes_are_not_retried(tmp_path: Path, code: int) -> None:
    outcome = retried(tmp_path, [code, 0])
    assert len(outcome.nodes[0].attempts) == 1
    assert outcome.exit_code == code


def test_limit_ends_retries(tmp_path: Path) -> None:
    outcome = retried(tmp_path, [75], limit="2")
    assert len(outcome.nodes[0].attempts) == 3
    assert outcome.exit_code == 75 and not outcome.interrupted


@pytest.mark.parametrize(
    ("policy", "status", "again"),
    [
        ("Always", nodes.FAILED, True),
        ("Always", nodes.ERROR, True),
        ("OnFailure", nodes.FAILED, True),
        ("OnFailure", nodes.ERROR, False),
        ("OnError", nodes.FAILED, False),
        ("OnError", nodes.ERROR, True),
    ],
)
def test_policy(policy: str, status: str, again: bool) -> None:
    last = Attempt("", 0.0, 1.0, 9, status)
    assert comes_back({"limit": "3", "retryPolicy": policy}, last, 0) == again
    assert not comes_back({"limit": "3", "retryPolicy": policy, "expression": "false"}, last, 0)
    assert not comes_back(None, last, 0)


def test_backoff_grows_to_its_cap() -> None:
    backoff = {"duration": "10s", "factor": 2, "cap": "5m"}
    assert [wait_before(backoff, n) for n in range(7)] == [10, 20, 40, 80, 160, 300, 300]
    assert wait_before({}, 3) == 0
    assert [seconds(t) for t in ("3", "10s", "5m", "1h", "500ms")] == [3, 10, 300, 3600, 0.5]
    with pytest.raises(ValueError, match="5 days"):
        seconds("5 days")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    part = {"name": "p", "container": {"command": ["no-such-program"]}, "retryStrategy": RETRY}
    outcome = run_here(workflow([part], [{"name": "a", "template": "p"}]), tmp_path)
    assert outcome.nodes[0].message == "can't start no-such-program: No such file or directory"
    assert len(outcome.nodes[0].attempts) == 1 and outcome.exit_code == 127


def test_missing_outputs(tmp_path: Path) -> None:
    source = {"path": str(tmp_path / "none")}
    outputs = {"parameters": [{"name": "x", "valueFrom": {**source, "default": "d"}}]}
    tree = workflow([template("p", "pass", outputs=outputs)], [{"name": "a", "template": "p"}])
    assert run_here(tree, tmp_path / "logs").nodes[0].outputs == {"x": "d"}
    outputs["parameters"][0]["valueFrom"] = source
    outcome = run_here(tree, tmp_path / "logs")
    assert outcome.exit_code == 1 and "no output x" in outcome.nodes[0].message


def test_artifacts(tmp_path: Path) -> None:
    artifact = {"name": "page", "path": str(tmp_path / "page.html"), "archive": {"none": {}}}
    tree = workflow([template("p", "pass", outputs={"artifacts": [artifact]})], [{"name": "a", "template": "p"}])
    outcome = run_here(tree, tmp_path / "logs")
    assert outcome.exit_code == 1 and "no artifact page" in outcome.nodes[0].message
    (tmp_path / "page.html").write_text("x")
    assert run_here(tree, tmp_path / "logs").nodes[0].artifacts == {"page": str(tmp_path / "page.html")}
    artifact["optional"] = True  # type: ignore[assignment]
    (tmp_path / "page.html").unlink()
    assert run_here(tree, tmp_path / "logs").exit_code == 0


def test_exit_handler_is_told_of_failures(tmp_path: Path) -> None:
    say = with_args("say", "import sys; print(sys.argv[1:])", "{{workflow.status}}", "{{workflow.failures}}")
    tree = workflow([template("p", "raise SystemExit(3)"), say], [{"name": "a", "template": "p"}], onExit="say")
    outcome = run_here(tree, tmp_path)
    text = (tmp_path / "say-1.log").read_text()
    assert outcome.exit_code == 3 and "'Failed'" in text and "exit code 3" in text


def test_a_tolerant_leaf_turns_a_run_green_and_two_leaves_do_not(tmp_path: Path) -> None:
    """Why gate and report are both leaves."""
    parts = [template("good", "pass"), template("bad", "raise SystemExit(3)")]
    gate = {"name": "gate", "template": "bad"}
    chained = run_here(workflow(parts, [gate, {"name": "r", "template": "good", "depends": "gate.Failed"}]), tmp_path)
    assert chained.exit_code == 0
    both = run_here(workflow(parts, [gate, {"name": "r", "template": "good"}]), tmp_path)
    assert both.exit_code == 3


def test_a_leaf_left_out_takes_the_phase_of_what_it_waited_for(tmp_path: Path) -> None:
    parts = [template("good", "pass"), template("bad", "raise SystemExit(2)")]
    tasks = [{"name": "a", "template": "bad"}, {"name": "b", "template": "good", "depends": "a"}]
    outcome = run_here(workflow(parts, tasks), tmp_path)
    assert outcome.phase == nodes.FAILED and outcome.exit_code == 2


@pytest.mark.parametrize(("jobs", "dag_limit", "at_once"), [(4, None, 3), (2, None, 2), (4, 1, 1)])
def test_side_by_side(tmp_path: Path, jobs: int, dag_limit: int | None, at_once: int) -> None:
    body = "import time; time.sleep(0.4)"
    tree = workflow([template("p", body)], [{"name": "t", "template": "p", "withItems": [1, 2, 3]}])
    if dag_limit:
        tree["spec"]["templates"][-1]["parallelism"] = dag_limit
    outcome = run_here(tree, tmp_path / "logs", jobs=jobs)
    lives = [(a.started, a.ended or 0.0) for node in outcome.nodes for a in node.attempts]
    assert max(sum(start <= moment < end for start, end in lives) for moment, _ in lives) == at_once


def spoilt(where: list[Any], key: str, value: Any) -> dict[str, Any]:
    from workflows.walk_forward import rendered

    tree: Any = deepcopy(rendered())
    part = tree
    for step in where:
        part = next(t for t in part if t.get("name") == step) if isinstance(part, list) else part[step]
    part[key] = value
    return tree


T = ["spec", "templates"]


@pytest.mark.parametrize(
    ("where", "key", "value", "says"),
    [
        (["spec"], "suspend", True, "spec.suspend"),
        (
            [*T, "train"],
            "retryStragety",
            {},
            "templates[train].retryStragety: the local runner does not know this field (did",
        ),
        ([*T, "train", "container"], "imagge", "x", "templates[train].container.imagge"),
        ([*T, "train", "container"], "lifecycle", {}, "container.lifecycle"),
        ([*T, "train", "retryStrategy"], "retryPolicy", "OnTransientError", "retryPolicy 'OnTransientError'"),
        ([*T, "train", "retryStrategy", "backoff"], "maxDuration", "1h", "backoff.maxDuration"),
        ([*T, "study", "dag"], "target", "gate", "dag.target"),
        ([*T, "study", "dag"], "failFast", True, "only false"),
        ([*T, "study", "dag", "tasks", "gate"], "when", "false", "tasks[gate].when"),
        ([*T, "study", "dag", "tasks", "gate"], "template", "gatee", "no template 'gatee' (did you mean 'gate'?)"),
        ([*T, "study", "dag", "tasks", "gate"], "depends", "trian", "no task 'trian' (did you mean 'train'?)"),
        ([*T, "study", "dag", "tasks", "train"], "depends", "gate", "wait for each other: train, gate, report"),
        ([*T, "study", "dag", "tasks", "train"], "withItems", [1], "more than one of"),
        (["spec"], "onExit", "sumary", "no template 'sumary'"),
        (["spec"], "hooks", {}, "spec.hooks"),
    ],
)
def test_what_is_not_known_is_refused(where: list[Any], key: str, value: Any, says: str) -> None:
    with pytest.raises(UnsupportedField) as error:
        check_workflow(spoilt(where, key, value))
    assert says in str(error.value)


def test_parameters_are_checked(tmp_path: Path) -> None:
    tree = workflow([template("p", "pass")], [{"name": "a", "template": "p"}])
    tree["spec"]["arguments"] = {"parameters": [{"name": "folds", "value": "3"}, {"name": "needed"}]}
    with pytest.raises(UsageError, match=r"parameter fold: .*did you mean 'folds'"):
        run_here(tree, tmp_path, {"fold": "3"})
    with pytest.raises(UsageError, match="parameter needed: it has no default"):
        run_here(tree, tmp_path)


def test_unresolved_tags_stop_everything(tmp_path: Path) -> None:
    start = time.monotonic()
    slow = template("slow", "import time; time.sleep(30)")
    bad = with_args("bad", "pass", "{{inputs.parameters.nothing}}")
    with pytest.raises(WorkflowError, match=r"tag \{\{inputs.parameters.nothing\}\}"):
        run_here(workflow([slow, bad], [{"name": "a", "template": "slow"}, {"name": "b", "template": "bad"}]), tmp_path)
    assert time.monotonic() - start < 10


def test_substitution() -> None:
    scope = {"a": {"b": "x", "n": 3}, "list": [1]}
    assert resolve("-{{a.b}}-{{ a.n }}-{{=a.n + 1}}-{{list}}", scope) == "-x-3-4-[1]"
    assert resolve("plain", {}) == "plain"


def test_pods_that_ask_for_a_gpu_get_one_each(tmp_path: Path) -> None:
    say = "import os, time; print('GPU', os.environ.get('CUDA_VISIBLE_DEVICES', 'none')); time.sleep(0.3)"
    asks, plain = template("asks", say), template("plain", say)
    asks["container"]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    tasks = [{"name": "t", "template": "asks", "withItems": [1, 2, 3]}, {"name": "p", "template": "plain"}]

    def seen(outcome: Any) -> dict[str, str]:
        return {n.name: Path(n.attempts[0].log).read_text().split()[-1] for n in outcome.nodes}

    found = seen(run_here(workflow([asks, plain], tasks), tmp_path, gpus=["4", "5"]))
    assert found["p"] == "none" and {found[f"t-{i}"] for i in (1, 2, 3)} == {"4", "5"}
    assert set(seen(run_here(workflow([asks, plain], tasks), tmp_path)).values()) == {"none"}


def test_precompute_features_alone(tmp_path: Path) -> None:
    from workflows.features import rendered

    places = {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}
    outcome = run_here(rendered(), tmp_path / "logs", {"data": "synthetic", "run-id": "r", **places})
    assert outcome.exit_code == 0
    assert phases(outcome) == {"resolve": nodes.SUCCEEDED, "precompute": nodes.SUCCEEDED}
    assert len(json.loads(outcome.nodes[-1].outputs["folds"])) == 3


def test_stopped_between_two_tasks_is_interrupted(tmp_path: Path) -> None:
    """Every pod that ran ended well, yet the study is not done."""
    runner: Any = None

    def changed(node: Any) -> None:
        if node.name == "a" and node.phase == nodes.SUCCEEDED:
            runner._stop()

    async def run() -> Any:
        nonlocal runner
        tasks = [{"name": "a", "template": "p"}, {"name": "b", "template": "p", "depends": "a"}]
        runner = LocalRunner(workflow([template("p", "pass")], tasks), {}, tmp_path, changed=changed)
        return await runner.run()

    outcome = asyncio.run(run())
    assert outcome.interrupted and outcome.exit_code == 75 and phases(outcome) == {"a": nodes.SUCCEEDED}


def test_a_signal_while_a_process_starts_reaches_it(tmp_path: Path) -> None:
    """The stop comes after the attempt was decided on and before its process is known to the runner."""
    body = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(30)"
    runner: Any = None

    async def run() -> Any:
        nonlocal runner
        runner = LocalRunner(
            workflow([template("p", body)], [{"name": "a", "template": "p"}]), {}, tmp_path, changed=changed
        )
        return await runner.run()

    def changed(node: Any) -> None:
        if node.phase == nodes.RUNNING:
            runner._stop()

    start = time.monotonic()
    outcome = asyncio.run(run())
    assert outcome.interrupted and time.monotonic() - start < 15
    assert outcome.nodes[0].exit_code in (75, 143)
