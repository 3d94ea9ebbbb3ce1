"""The lint on templates spoilt in one place, the server's opinion, and the installation of templates."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.workflows.conftest import Commands, rendered_templates
from tests.workflows.fake_api import ARGO, FakeApi, status
from workflows import render
from workflows.lint import lint

Tree = dict[str, Any]
TEMPLATES = f"{ARGO}/workflowtemplates"


@pytest.fixture
def tree() -> Tree:
    return deepcopy(rendered_templates()["alpha-rl"])


def part(tree: Tree, name: str) -> Tree:
    return next(t for t in tree["spec"]["templates"] if t["name"] == name)


def task(tree: Tree, name: str) -> Tree:
    return next(t for t in part(tree, "study")["dag"]["tasks"] if t["name"] == name)


def env(text: str) -> Callable[[Tree], Any]:
    return lambda tree: part(tree, "train")["container"]["env"].append({"name": "X", "value": text})


def argument(name: str, value: str) -> Callable[[Tree], Any]:
    return lambda tree: task(tree, "train")["arguments"]["parameters"].append({"name": name, "value": value})


SPOILT: dict[str, tuple[Callable[[Tree], Any], str]] = {
    "misspelt field": (
        lambda t: part(t, "gate").update(retryStragety={}),
        "retryStragety: unknown field (did you mean",
    ),
    "misspelt field inside": (
        lambda t: part(t, "gate")["container"].update(imagge="x"),
        "container.imagge: unknown field (did you mean 'image'?)",
    ),
    "absent template": (lambda t: task(t, "gate").update(template="gaet"), "no template 'gaet' (did you mean 'gate'?)"),
    "absent task": (lambda t: task(t, "train").update(depends="precomput"), "no task 'precomput'"),
    "circle": (lambda t: task(t, "resolve").update(depends="train"), "wait for each other"),
    "unused template": (
        lambda t: t["spec"]["templates"].append({**part(t, "gate"), "name": "extra"}),
        "templates[extra]: never used",
    ),
    "unread parameter": (
        lambda t: t["spec"]["arguments"]["parameters"].append({"name": "lonely", "value": ""}),
        "arguments[lonely]: no template reads it",
    ),
    "number as parameter": (
        lambda t: t["spec"]["arguments"]["parameters"][3].update(value=3),
        "spec.arguments.parameters.3.value: Input should be a valid string",
    ),
    "unknown parameter": (env("{{workflow.parameters.n-step}}"), "no parameter 'n-step' (did you mean 'n-steps'?)"),
    "unknown parameter in an expression": (env("{{=workflow.parameters['n-step']}}"), "no parameter 'n-step'"),
    "hyphen in an expression": (env("{{=workflow.parameters.n-steps}}"), "needs workflow.parameters['...']"),
    "unknown input": (env("{{inputs.parameters.flod}}"), "no input 'flod' (did you mean 'fold'?)"),
    "tag of nothing": (env("{{retriez}}"), "{{retriez}}: nothing fills this in"),
    "lastRetry without retries": (lambda t: part(t, "train").pop("retryStrategy"), "only there where the template has"),
    "no retries": (
        lambda t: part(t, "gate").pop("retryStrategy"),
        "no retryStrategy: an interruption would be the end",
    ),
    "policy": (lambda t: part(t, "gate")["retryStrategy"].update(retryPolicy="OnError"), "must be Always"),
    "a bug is retried": (
        lambda t: part(t, "gate")["retryStrategy"].update(expression="true"),
        "exit code 1 is retried",
    ),
    "interruptions are not retried": (
        lambda t: part(t, "gate")["retryStrategy"].update(expression="asInt(lastRetry.exitCode) in [137]"),
        "exit code 75 is not retried",
    ),
    "broken expression": (
        lambda t: part(t, "gate")["retryStrategy"].update(expression="lastRetry.status == "),
        "expression",
    ),
    "output of a later task": (
        lambda t: task(t, "resolve").update(
            arguments={"parameters": [{"name": "x", "value": "{{tasks.gate.outputs.parameters.verdict}}"}]}
        ),
        "{{tasks.gate.outputs.parameters.verdict}}: no earlier task gives it",
    ),
    "misspelt output": (
        lambda t: task(t, "train").update(withParam="{{tasks.precompute.outputs.parameters.fold}}"),
        "did you mean 'tasks.precompute.outputs.parameters.folds'?",
    ),
    "item without loop": (lambda t: task(t, "train").pop("withParam"), "{{item.fold}}: the task has no loop"),
    "input not given": (
        lambda t: task(t, "train")["arguments"]["parameters"].pop(),
        "of train is not given",
    ),
    "argument nobody takes": (argument("flod", "1"), "train has no input 'flod' (did you mean 'fold'?)"),
    "output without default": (
        lambda t: part(t, "gate")["outputs"]["parameters"][0]["valueFrom"].pop("default"),
        "output verdict: without a default",
    ),
    "mount of no volume": (
        lambda t: part(t, "gate")["container"]["volumeMounts"].append({"name": "cachs", "mountPath": "/x"}),
        "mounts 'cachs', a volume it doesn't have (did you mean 'caches'?)",
    ),
    "tag in a quantity": (
        lambda t: (
            part(t, "train")["container"]
            .setdefault("resources", {})
            .update(limits={"memory": "{{workflow.parameters.memory-mi}}Mi"})
        ),
        "quantities take no tags",
    ),
    "patch that is no JSON": (lambda t: part(t, "gate").update(podSpecPatch="{"), "podSpecPatch: not JSON"),
    "patch of no container": (
        lambda t: part(t, "gate").update(podSpecPatch='{"containers": [{"name": "mian"}]}'),
        "container 'mian': pods have main, init and wait",
    ),
    "parallelism on a pod": (lambda t: part(t, "train").update(parallelism=2), "parallelism: only a DAG has it"),
    "gate before the report": (lambda t: task(t, "report").update(depends="gate"), "gate is not a leaf"),
    "a name too long": (lambda t: t["metadata"].update(name="a" * 60), "longer than 57 characters"),
}


def test_what_is_shipped_is_clean() -> None:
    for tree in rendered_templates().values():
        assert lint(tree) == []


@pytest.mark.parametrize("what", SPOILT)
def test_each_mistake_is_named(tree: Tree, what: str) -> None:
    spoil, says = SPOILT[what]
    spoil(tree)
    found = lint(tree)
    assert any(says in line for line in found), found


def test_the_command_offline(command: Commands) -> None:
    done = command("render", "--lint")
    assert done.returncode == 0 and "good     alpha-rl" in done.stdout
    assert "server   not checked: no cluster configured" in done.stdout


def test_the_command_with_a_spoilt_template(command: Commands, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    part(tree, "gate")["retryStragety"] = {}
    monkeypatch.setattr(render, "rendered_templates", lambda: {"alpha-rl": tree})
    done = command("render", "--lint")
    assert done.returncode == 1 and "wrong    alpha-rl: spec.templates" in done.stdout


def test_the_servers_lint(command: Commands, api: FakeApi) -> None:
    before = dict(api.objects)
    done = command("render", "--lint")
    assert done.returncode == 0 and "server   checked by cluster" in done.stdout
    sent = api.asked("POST", TEMPLATES)
    assert [r.query for r in sent] == [{"dryRun": "All", "fieldValidation": "Strict"}] * 2
    assert api.objects == before, "nothing was created, though templates of these names are there"
    api.answers[TEMPLATES] = status(400, "BadRequest", 'unknown field "spec.templates[1].retryStragety"')
    done = command("render", "--lint")
    assert done.returncode == 1 and 'unknown field "spec.templates[1].retryStragety"' in done.stdout
    api.answers[TEMPLATES] = status(403, "Forbidden", "cannot create")
    assert command("render", "--lint").returncode == 2


def values(api: FakeApi, name: str = "alpha-rl") -> dict[str, str]:
    given = api.objects[f"{TEMPLATES}/{name}"]["spec"]["arguments"]["parameters"]
    return {p["name"]: p["value"] for p in given}


def test_templates_are_installed(command: Commands, api: FakeApi) -> None:
    for name in ("alpha-rl", "precompute-features"):
        del api.objects[f"{TEMPLATES}/{name}"]
    done = command("render", "--apply", "--default", "image=r/foxhunt:1", "--default", "data=s3://a/b")
    assert done.returncode == 0 and done.stdout.count("created") == 2, done.stderr
    for name in ("alpha-rl", "precompute-features"):
        assert (values(api, name)["image"], values(api, name)["data"]) == ("r/foxhunt:1", "s3://a/b")
    annotations = api.objects[f"{TEMPLATES}/alpha-rl"]["metadata"]["annotations"]
    assert annotations[render.DIGEST] == rendered_templates()["alpha-rl"]["metadata"]["annotations"][render.DIGEST]


def test_renewing_keeps_the_clusters_own_defaults(command: Commands, api: FakeApi) -> None:
    there = api.objects[f"{TEMPLATES}/alpha-rl"]
    there["metadata"]["resourceVersion"] = "41"
    next(p for p in there["spec"]["arguments"]["parameters"] if p["name"] == "gpu-pool")["value"] = "h200"
    done = command("render", "--apply", "--default", "image=r/foxhunt:2")
    assert "renewed  alpha-rl in namespace foxhunt, kept gpu-pool=h200" in done.stdout
    assert (values(api)["gpu-pool"], values(api)["image"]) == ("h200", "r/foxhunt:2")
    assert api.asked("PUT", "alpha-rl")[0].body["metadata"]["resourceVersion"] == "41", "nobody's change is lost"


def test_wrong_uses_of_render(command: Commands, api: FakeApi) -> None:
    assert "did you mean 'image'?" in command("render", "--apply", "--default", "imag=x").stderr
    assert "only with --apply" in command("render", "--default", "image=x").stderr
    assert "one at a time" in command("render", "--lint", "--check").stderr
    assert not api.asked("POST") and not api.asked("PUT")
