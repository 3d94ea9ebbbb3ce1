"""The walk-forward study `alpha-rl` as a WorkflowTemplate: resolve -> precompute -> train[fold] -> gate, report.

Gate and report are two leaves and run whatever became of the folds: a DAG's phase comes from its leaves, so a report
after the gate would turn a failed study green. `template()` is the only source; the YAML is rendered from it.
"""

from __future__ import annotations

from typing import Any

from hera.workflows import DAG, Artifact, Container, NoneArchiveStrategy, Parameter, Task, WorkflowTemplate

from workflows.templates import (
    COMMON_PARAMETERS,
    DISPLAY_NAME,
    GPU_PARAMETERS,
    OUTPUTS_MOUNT,
    of_inputs,
    of_task,
    of_workflow,
    output,
    output_file,
    parameters,
    pod,
    workflow_rules,
)

RUN_FOLDER = "alpha-rl-runs"
RUN_INPUTS = [Parameter(name="run-id"), Parameter(name="set")]
FOLDS_OVER = "train.Succeeded || train.Failed || train.Errored || train.Skipped"  # skipped: an empty fold list


def run_options(*, resolved: bool = True) -> list[str]:
    """Options that every trainer command of a run shares."""
    run_id, overrides = (of_inputs("run-id"), of_inputs("set")) if resolved else (of_workflow("run-id"), "")
    return [
        *("--run-id", run_id, "--runs", of_workflow("runs"), "--cache", of_workflow("cache")),
        *("--config", of_workflow("config"), "--set", overrides, "--outputs", OUTPUTS_MOUNT),
    ]


def resolve() -> Container:
    """What code, data and settings this is: refuses a wrong branch, derives the run-id, joins the overrides."""
    flags = ("data", "config", "set", "folds", "n-steps", "n-backtests", "per-capacity", "run-id", "git-branch")
    args = [word for flag in flags for word in (f"--{flag}", of_workflow(flag))]
    outputs = [output("run-id"), output("data"), output("set")]
    return pod("resolve", "workflows.resolve", [*args, "--outputs", OUTPUTS_MOUNT], s3=True, outputs=outputs)


def precompute(only_folds: str) -> Container:
    """Market files -> feature cache and the fold list with its dates."""
    args = ["precompute", "--data", of_inputs("data"), "--folds", of_workflow("folds"), "--only-folds", only_folds]
    inputs = [*RUN_INPUTS, Parameter(name="data")]
    outputs = [output("folds", "[]")]
    return pod("precompute", "trainer", [*args, *run_options()], s3=True, inputs=inputs, outputs=outputs)


def train() -> Container:
    """One fold: trains, then evaluates out of sample. Resumes from its newest checkpoint."""
    args = ["train", "--fold", of_inputs("fold"), "--resume", "auto", *run_options()]
    inputs = [*RUN_INPUTS, Parameter(name="fold"), Parameter(name="label"), Parameter(name="node")]
    files = (("metrics", "metrics.jsonl"), ("fold-result", "fold_result.json"))
    outputs = [output("wr"), output("hold-pct"), *(output_file(name, file) for name, file in files)]
    deadline = of_workflow("attempt-deadline-s")
    return pod("train", "trainer", args, gpu=True, inputs=inputs, outputs=outputs, active_deadline_seconds=deadline)


def gate() -> Container:
    return pod("gate", "trainer", ["gate", *run_options()], inputs=RUN_INPUTS, outputs=[output("verdict", "failed")])


def report() -> Container:
    """The report as an artifact of its own, not packed: the UI shows it."""
    path = f"{of_workflow('runs')}/{RUN_FOLDER}/{of_inputs('run-id')}/report.html"
    page = Artifact(name="report", path=path, archive=NoneArchiveStrategy())
    return pod("report", "trainer", ["report", *run_options()], inputs=RUN_INPUTS, outputs=[page])


def summary() -> Container:
    """The exit handler. It can't read outputs of tasks, so a derived run-id is unknown to it."""
    args = ["--status", "{{workflow.status}}", "--failures", "{{workflow.failures}}"]
    where = ["--run-id", of_workflow("run-id"), "--runs", of_workflow("runs")]
    return pod("summary", "workflows.summary", [*args, *where])


def run_arguments(**more: str) -> dict[str, str]:
    return {"run-id": of_task("resolve", "run-id"), "set": of_task("resolve", "set"), **more}


def template() -> WorkflowTemplate:
    """The WorkflowTemplate `alpha-rl`."""
    with WorkflowTemplate(
        name="alpha-rl",
        entrypoint="study",
        arguments=parameters(COMMON_PARAMETERS, GPU_PARAMETERS),
        on_exit="summary",
        annotations={
            "workflows.argoproj.io/title": "alpha-rl walk-forward study",
            "workflows.argoproj.io/description": "resolve, precompute, one training pod a fold, gate and report",
        },
        **workflow_rules(),
    ) as workflow:
        steps = {t.name: t for t in (resolve(), precompute(of_workflow("only-folds")), train(), gate(), report())}
        summary()
        with DAG(name="study", fail_fast=False):
            data = of_task("resolve", "data")
            Task(name="resolve", template=steps["resolve"])
            Task(name="precompute", template=steps["precompute"], depends="resolve", arguments=run_arguments(data=data))
            Task(
                name="train",
                template=steps["train"],
                depends="precompute",
                arguments=run_arguments(fold="{{item.fold}}", label="{{item.label}}", node="{{item.node}}"),
                with_param=of_task("precompute", "folds"),
            )
            for leaf in ("gate", "report"):
                Task(name=leaf, template=steps[leaf], depends=FOLDS_OVER, arguments=run_arguments())
    return workflow


def rendered() -> dict[str, Any]:
    """The template as plain data, with the fold's dates as its node's name.

    Hera puts a container's annotations on the pod; the node's name is an annotation of the template itself.
    """
    tree: dict[str, Any] = template().to_dict()
    for part in tree["spec"]["templates"]:
        if part["name"] == "train":
            part["annotations"] = {DISPLAY_NAME: of_inputs("node")}
    return tree
