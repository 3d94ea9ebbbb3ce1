"""Building blocks of every WorkflowTemplate: pod rules, retry rule, volumes, the trainer's commands as containers.

All that a pod learns comes as string parameters, so that clusters which only allow template references can run it.
A container's command is one that a person could type; what only a cluster reads (pools, patches, security) is set here.
"""

from __future__ import annotations

import json
from typing import Any

from hera.workflows import (
    Artifact,
    Container,
    EmptyDirVolume,
    Env,
    ExistingVolume,
    NoneArchiveStrategy,
    Parameter,
    Resources,
    RetryStrategy,
    SecretEnvFrom,
)
from hera.workflows import models as m

RETRIED_EXIT_CODES = (75, 77, 137, 143, 134, 139)  # never 1 bug, 2 usage, 3 gate failed, 76 crash loop
UNKNOWN_EXIT_CODE = -1  # what the controller reports for an evicted pod
RETRY_EXPRESSION = (
    "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in "
    f"[{', '.join(map(str, (*RETRIED_EXIT_CODES, UNKNOWN_EXIT_CODE)))}]"
)
CLAIM_MOUNT = "/feature-cache"
OUTPUTS_MOUNT = "/outputs"
CACHES_MOUNT = "/caches"
TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DISPLAY_NAME = "workflows.argoproj.io/display-name"
NODE_LOST_SECONDS = 60

# name -> (default, description); DESCRIPTION is what the Argo UI shows beside the field.
COMMON_PARAMETERS: dict[str, tuple[str, str]] = {
    "data": ("", "market data: a path on the claim, s3://bucket/key or synthetic:signal=0.75"),
    "config": ("small", "profile or TOML file"),
    "set": ("", "overrides of the profile: section.key=value; section.key=value"),
    "folds": ("3", "walk-forward folds, 1 to 100"),
    "n-steps": ("", "training steps of a fold; empty: the profile's"),
    "n-backtests": ("", "parallel backtests; empty: the profile's"),
    "per-capacity": ("", "transitions in replay; empty: the profile's"),
    "run-id": ("", "name of the run; empty: derived from code, config and data"),
    "git-branch": ("", "branch that the image must have been built from; empty: any"),
    "runs": (CLAIM_MOUNT, "folder of the runs"),
    "cache": (CLAIM_MOUNT, "folder of the feature cache"),
    "image": ("foxhunt:latest", "image of every pod"),
    "claim": ("feature-cache", "persistent volume claim, ReadWriteMany when folds run on several nodes"),
    "cpu-pool": ("ci-compile-cpu", "value of the node label `pool` for CPU work"),
    "s3-secret": ("foxhunt-s3", "secret with AWS_ACCESS_KEY_ID and the like for s3:// data; may be absent"),
    "cpu-memory-mi": ("4096", "memory of a CPU pod, MiB; doubled after an out-of-memory end"),
}
GPU_PARAMETERS: dict[str, tuple[str, str]] = {
    "only-folds": ("", "fold numbers to run, such as 0,2; empty: all"),
    "gpu-pool": ("ci-training-h100", "value of the node label `pool` for training"),
    "memory-mi": ("16384", "memory of a training pod, MiB; doubled after an out-of-memory end"),
    "cpus": ("4", "CPU cores that a training pod asks for"),
    "attempt-deadline-s": ("86400", "longest life of one attempt, seconds; it saves, and the next goes on"),
}


def parameters(*tables: dict[str, tuple[str, str]]) -> list[Parameter]:
    """Workflow parameters, all strings."""
    return [Parameter(name=n, value=v, description=d) for table in tables for n, (v, d) in table.items()]


def of_workflow(name: str) -> str:
    return f"{{{{workflow.parameters.{name}}}}}"


def of_inputs(name: str) -> str:
    return f"{{{{inputs.parameters.{name}}}}}"


def of_task(task: str, name: str) -> str:
    return f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"


def retry_strategy() -> RetryStrategy:
    """One rule for every pod: interruptions, kills and out of memory come back, verdicts and mistakes don't."""
    return RetryStrategy(
        limit="30",
        retry_policy="Always",
        expression=RETRY_EXPRESSION,
        backoff=m.Backoff(duration="10s", factor=2, cap="5m"),
    )


def output(name: str, default: str = "") -> Parameter:
    """An output parameter that the command writes as `<OUTPUTS_MOUNT>/<name>`; the default keeps readers resolvable."""
    return Parameter(name=name, value_from=m.ValueFrom(path=f"{OUTPUTS_MOUNT}/{name}", default=default))


def output_file(name: str, file: str) -> Artifact:
    """An artifact that the command writes as `<OUTPUTS_MOUNT>/<file>`, kept as it is, so that the UI can show it."""
    return Artifact(name=name, path=f"{OUTPUTS_MOUNT}/{file}", archive=NoneArchiveStrategy(), optional=True)


def tolerations(pool: str) -> list[m.Toleration]:
    """The pool's own taint, and a lost node given up after a minute instead of five."""
    lost = [
        m.Toleration(
            key=f"node.kubernetes.io/{what}", operator="Exists", effect="NoExecute", toleration_seconds=seconds
        )
        for what, seconds in (("unreachable", NODE_LOST_SECONDS), ("not-ready", NODE_LOST_SECONDS))
    ]
    own = m.Toleration(key="pool", operator="Equal", value=pool, effect="NoSchedule")
    return [own, m.Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"), *lost]


def main_patch(memory: str, cpus: str) -> str:
    """Strategic merge patch of the pod: what the workflow API has no field for, or doesn't template."""
    resources = {"limits": {"memory": memory}, "requests": {"memory": memory, "cpu": cpus}}
    return json.dumps({"terminationGracePeriodSeconds": 30, "containers": [{"name": "main", "resources": resources}]})


def grown_memory(parameter: str) -> str:
    """Twice the memory in the attempt that follows an out-of-memory end.

    That is all an expression can see. A training whose grown attempt was interrupted asks again, by exit 77 at its
    start (docs/decisions/0004-memory-growth.md).
    """
    asked = f"asInt(workflow.parameters['{parameter}'])"
    return f"{{{{={asked} * (lastRetry?.exitCode in ['77', '137'] ? 2 : 1)}}}}Mi"


def executor_patch() -> str:
    """Locks down the executor's own containers too, or a namespace with restricted pod security refuses the pod."""
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return json.dumps(
        {
            "initContainers": [{"name": "init", "securityContext": locked}],
            "containers": [{"name": "wait", "securityContext": locked}],
        }
    )


def environment() -> list[Env | m.EnvVar]:
    """Caches on a volume (the root is read-only), and how the last attempt ended."""
    caches = {"HOME": "home", "CUPY_CACHE_DIR": "cupy", "NUMBA_CACHE_DIR": "numba", "MPLCONFIGDIR": "matplotlib"}
    last = {
        "FOXHUNT_RETRIES": "{{retries}}",
        "FOXHUNT_LAST_EXIT_CODE": "{{lastRetry.exitCode}}",
        "FOXHUNT_LAST_STATUS": "{{lastRetry.status}}",
        "FOXHUNT_LAST_MESSAGE": "{{lastRetry.message}}",
        "FOXHUNT_WORKFLOW": "{{workflow.uid}}",
    }
    fields = {"FOXHUNT_POD": "metadata.name", "FOXHUNT_NODE": "spec.nodeName"}
    return [
        *(Env(name=k, value=f"{CACHES_MOUNT}/{v}") for k, v in caches.items()),
        *(Env(name=k, value=v) for k, v in last.items()),
        Env(name="FOXHUNT_IMAGE", value=of_workflow("image")),
        *(
            m.EnvVar(name=k, value_from=m.EnvVarSource(field_ref=m.ObjectFieldSelector(field_path=v)))
            for k, v in fields.items()
        ),
    ]


def pod(name: str, module: str, args: list[str], *, gpu: bool = False, s3: bool = False, **more: Any) -> Container:
    """A container template that runs `python -m <module> <args>` on the GPU pool or the CPU pool.

    `s3`: it reads market data, so it gets the secret for s3:// addresses, where there is one.
    """
    pool = of_workflow("gpu-pool" if gpu else "cpu-pool")
    memory = grown_memory("memory-mi" if gpu else "cpu-memory-mi")
    return Container(
        name=name,
        image=of_workflow("image"),
        image_pull_policy="IfNotPresent",
        command=["python", "-m", module],
        args=args,
        env=environment(),
        env_from=[SecretEnvFrom(name=of_workflow("s3-secret"), optional=True)] if s3 else None,
        resources=Resources(gpus=1) if gpu else None,
        volumes=[
            ExistingVolume(name="feature-cache", claim_name=of_workflow("claim"), mount_path=CLAIM_MOUNT),
            EmptyDirVolume(name="outputs", mount_path=OUTPUTS_MOUNT),
            EmptyDirVolume(name="caches", mount_path=CACHES_MOUNT),
            EmptyDirVolume(name="tmp", mount_path="/tmp"),
            # Where a container mounts something of its own, no service account's token is put: only the executor's
            # containers get it, and the trainer has no way to the API server.
            EmptyDirVolume(name="no-token", mount_path=TOKEN_MOUNT),
        ],
        node_selector={"pool": pool},
        tolerations=tolerations(pool),
        retry_strategy=retry_strategy(),
        pod_spec_patch=main_patch(memory, of_workflow("cpus") if gpu else "1"),
        security_context=m.SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=m.Capabilities(drop=["ALL"]),
        ),
        **more,
    )


def workflow_rules() -> dict[str, Any]:
    """Fields of every workflow: identity, security, what is kept for how long."""
    return {
        "service_account_name": "foxhunt",
        "security_context": m.PodSecurityContext(
            run_as_non_root=True,
            run_as_user=1000,
            run_as_group=1000,
            fs_group=1000,
            fs_group_change_policy="OnRootMismatch",
            seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
        ),
        "pod_spec_patch": executor_patch(),
        "pod_gc": m.PodGC(strategy="OnWorkflowSuccess", delete_delay_duration="1h"),
        "ttl_strategy": m.TTLStrategy(seconds_after_completion=30 * 86400),
    }
