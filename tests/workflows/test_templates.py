"""The rendered WorkflowTemplates: equal to the golden files, without misspelt fields, by the rules of the trade."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from workflows import render
from workflows.fields import check_workflow
from workflows.lint import unknown_fields
from workflows.templates import OUTPUTS_MOUNT

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trees() -> dict[str, dict[str, Any]]:
    return render.rendered_templates()


def test_golden_files_are_current() -> None:
    files = render.rendered_files()
    assert {p.name for p in render.FOLDER.glob("*.yaml")} == set(files)
    for name, text in files.items():
        assert (render.FOLDER / name).read_text() == text, "run python -m workflows.render and review the difference"


def test_the_golden_file_is_what_runs(trees: dict[str, Any]) -> None:
    for name, tree in trees.items():
        assert yaml.safe_load((render.FOLDER / f"{name}.yaml").read_text()) == tree


@pytest.mark.parametrize("name", ["alpha-rl", "precompute-features"])
def test_no_unknown_fields(trees: dict[str, Any], name: str) -> None:
    assert unknown_fields(trees[name]) == []
    check_workflow(trees[name])


def pods(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in tree["spec"]["templates"] if "container" in part]


def test_pod_rules(trees: dict[str, Any]) -> None:
    for tree in trees.values():
        assert tree["spec"]["securityContext"]["runAsNonRoot"] is True
        assert tree["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        locked = json.loads(tree["spec"]["podSpecPatch"])
        assert [c["name"] for c in locked["initContainers"] + locked["containers"]] == ["init", "wait"]
        for part in pods(tree):
            security = part["container"]["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert json.loads(part["podSpecPatch"])["terminationGracePeriodSeconds"] == 30
            assert part["retryStrategy"]["retryPolicy"] == "Always"
            assert part["retryStrategy"]["limit"] == "30"
            assert part["retryStrategy"]["backoff"] == {"duration": "10s", "factor": 2, "cap": "5m"}
            assert "affinity" not in part["retryStrategy"]
            mounted = {m["mountPath"] for m in part["container"]["volumeMounts"]}
            writable = {"/tmp", "/caches", OUTPUTS_MOUNT, "/feature-cache"}
            assert mounted == writable | {"/var/run/secrets/kubernetes.io/serviceaccount"}  # in place of the token
            assert part["nodeSelector"]["pool"] == part["tolerations"][0]["value"]


def test_outputs_have_defaults_and_lie_on_a_volume(trees: dict[str, Any]) -> None:
    """A skipped reader must still resolve, and a root without write access holds no files."""
    for tree in trees.values():
        for part in pods(tree):
            for parameter in part.get("outputs", {}).get("parameters", []):
                assert "default" in parameter["valueFrom"]
                assert parameter["valueFrom"]["path"] == f"{OUTPUTS_MOUNT}/{parameter['name']}"


def test_only_training_takes_a_gpu(trees: dict[str, Any]) -> None:
    with_gpu = [
        p["name"]
        for p in pods(trees["alpha-rl"])
        if "nvidia.com/gpu" in json.dumps(p["container"].get("resources", {}))
    ]
    assert with_gpu == ["train"]


def test_only_readers_of_market_data_get_the_s3_secret(trees: dict[str, Any]) -> None:
    wanted = [{"secretRef": {"name": "{{workflow.parameters.s3-secret}}", "optional": True}}]
    for tree in trees.values():
        given = {p["name"]: p["container"].get("envFrom") for p in pods(tree)}
        assert {name for name, value in given.items() if value} == {"resolve", "precompute"}
        assert all(value in (None, wanted) for value in given.values())


def test_a_pod_learns_who_it_is_and_how_the_last_one_ended(trees: dict[str, Any]) -> None:
    for tree in trees.values():
        for part in pods(tree):
            env = {e["name"]: e.get("value") for e in part["container"]["env"]}
            assert env["FOXHUNT_WORKFLOW"] == "{{workflow.uid}}" and env["FOXHUNT_RETRIES"] == "{{retries}}"
            assert env["FOXHUNT_IMAGE"] == "{{workflow.parameters.image}}"
            assert {"FOXHUNT_LAST_EXIT_CODE", "FOXHUNT_LAST_STATUS", "FOXHUNT_LAST_MESSAGE"} < env.keys()
            memory = json.loads(part["podSpecPatch"])["containers"][0]["resources"]["limits"]["memory"]
            assert "lastRetry?.exitCode in ['77', '137'] ? 2 : 1" in memory


def test_a_fold_leaves_metrics_and_result_as_files_that_the_page_can_show(trees: dict[str, Any]) -> None:
    (train,) = (p for p in pods(trees["alpha-rl"]) if p["name"] == "train")
    files = {a["name"]: a for a in train["outputs"]["artifacts"]}
    assert {name: a["path"] for name, a in files.items()} == {
        "metrics": f"{OUTPUTS_MOUNT}/metrics.jsonl",
        "fold-result": f"{OUTPUTS_MOUNT}/fold_result.json",
    }
    assert all(a["archive"] == {"none": {}} and a["optional"] for a in files.values())


def test_gate_and_report_are_the_leaves(trees: dict[str, Any]) -> None:
    from workflows.fields import leaves

    dag = next(part for part in trees["alpha-rl"]["spec"]["templates"] if "dag" in part)
    assert leaves(dag["dag"]["tasks"]) == ["gate", "report"]
    assert dag["dag"]["failFast"] is False


def test_workflows_know_the_trainer_by_its_command_line_only() -> None:
    for path in sorted((ROOT / "workflows").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] in ("trainer", "kernels")], path
