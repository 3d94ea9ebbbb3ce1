"""The shape of the program: stages only look back, one place names cupy, workflows know only a command line."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A module may import what stands before it. kernels and the vocabulary come first: everything is built of them.
ORDER = [
    "trainer.errors", "trainer.files", "trainer.paths", "trainer.logs", "kernels", "trainer.config", "trainer.device",
    "trainer.data", "trainer.env", "trainer.nets", "trainer.learn", "trainer.recipes", "trainer.results",
]  # fmt: skip
TOP = {"trainer.study", "trainer.verify", "trainer.bench", "trainer.inspection", "trainer.__main__"}


def modules(package):
    return sorted(p for p in (ROOT / package).rglob("*.py"))


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def stage(name):
    found = [i for i, prefix in enumerate(ORDER) if name == prefix or name.startswith(prefix + ".")]
    return found[-1] if found else None


@pytest.mark.parametrize("path", [*modules("trainer"), *modules("kernels")], ids=name_of)
def test_stages_only_look_back(path):
    name = name_of(path)
    if name in TOP or name == "trainer":
        return
    own = stage(name)
    assert own is not None, f"{name} belongs to no stage: add it to ORDER"
    for target, line in imports(path):
        if target.split(".")[0] in ("trainer", "kernels") and target not in ("trainer", "kernels"):
            other = stage(target)
            if other is None:
                assert target.startswith("trainer.") is False or target in TOP, f"{path}:{line} imports {target}"
                assert target not in TOP, f"{path}:{line} imports {target}, which stands above every stage"
            else:
                assert other <= own, f"{path}:{line}: {name} imports {target}, a later stage"


@pytest.mark.parametrize("path", [*modules("trainer"), *modules("kernels"), *modules("workflows")], ids=name_of)
def test_only_the_device_package_names_cupy(path):
    if path.relative_to(ROOT).parts[:2] == ("trainer", "device"):
        return
    for target, line in imports(path):
        assert target.split(".")[0] not in ("cupy", "nvmath", "cuda"), f"{path}:{line} imports {target}"


@pytest.mark.parametrize("path", modules("workflows"), ids=name_of)
def test_workflows_know_only_the_command_line(path):
    for target, line in imports(path):
        assert target.split(".")[0] not in ("trainer", "kernels"), f"{path}:{line} imports {target}"


def test_the_check_itself_would_notice():
    assert (
        stage("trainer.results.gate") > stage("trainer.learn.loop") > stage("trainer.nets.network") > stage("kernels")
    )
