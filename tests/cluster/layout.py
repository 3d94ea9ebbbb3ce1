"""Names, addresses and folders of the test cluster."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("FOXHUNT_CLUSTER_CACHE", "~/.cache/foxhunt-cluster")).expanduser()
RUN = Path("/var/lib/foxhunt-cluster")
LOGS = RUN / "logs"
PKI = RUN / "pki"
CLAIM = RUN / "claim"  # what the pods see as /feature-cache
ADMIN = PKI / "admin.kubeconfig"
BRIDGE = "foxhunt0"
CGROUP = "foxhunt-cluster"

NAMESPACE = "foxhunt"
GPU_POOL = "ci-training-h100"
CPU_POOL = "ci-compile-cpu"
GPU = "nvidia.com/gpu"
BUCKET = "foxhunt"

API_PORT = 6443
ETCD_PORT = 2379
S3_PORT = 7070


@dataclass(frozen=True)
class NodeSpec:
    """One node: a containerd and a kubelet with folders, cgroups and addresses of their own."""

    name: str
    pool: str
    gpus: int
    host: int  # last byte of its address
    pods: tuple[int, int]  # last bytes of its pods' addresses

    @property
    def folder(self) -> Path:
        return RUN / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"


NODES = (
    NodeSpec("gpu-a", GPU_POOL, 2, 2, (40, 109)),
    NodeSpec("gpu-b", GPU_POOL, 2, 3, (110, 179)),
    NodeSpec("cpu-a", CPU_POOL, 0, 4, (180, 249)),
)


def node_spec(name: str) -> NodeSpec:
    return next(node for node in NODES if node.name == name)


@dataclass(frozen=True)
class Facts:
    """What differs from one `up` to the next; kept beside the journal for the commands that follow."""

    prefix: str  # "10.244.0": every address of the cluster is prefix.N
    image: str  # the project's image on every node
    branch: str  # that it was built from
    s3_key: str
    s3_secret: str

    @property
    def gateway(self) -> str:
        return f"{self.prefix}.1"

    @property
    def api(self) -> str:
        return f"https://{self.gateway}:{API_PORT}"

    @property
    def s3(self) -> str:
        return f"{self.gateway}:{S3_PORT}"

    def address(self, host: int) -> str:
        return f"{self.prefix}.{host}"

    def write(self) -> None:
        path = RUN / "facts.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read() -> Facts:
        tree: dict[str, Any] = json.loads((RUN / "facts.json").read_text())
        return Facts(**tree)
