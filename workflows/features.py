"""The WorkflowTemplate `precompute-features`: fills the feature cache on the CPU pool before a study needs it."""

from __future__ import annotations

from typing import Any

from hera.workflows import DAG, Task, WorkflowTemplate

from workflows.templates import COMMON_PARAMETERS, of_task, parameters, workflow_rules
from workflows.walk_forward import precompute, resolve, run_arguments


def rendered() -> dict[str, Any]:
    """The template as plain data."""
    with WorkflowTemplate(
        name="precompute-features",
        entrypoint="features",
        arguments=parameters(COMMON_PARAMETERS),
        annotations={"workflows.argoproj.io/title": "features of a market data set"},
        **workflow_rules(),
    ) as workflow:
        first, second = resolve(), precompute("")
        with DAG(name="features", fail_fast=False):
            Task(name="resolve", template=first)
            arguments = run_arguments(data=of_task("resolve", "data"))
            Task(name="precompute", template=second, depends="resolve", arguments=arguments)
    tree: dict[str, Any] = workflow.to_dict()
    return tree
