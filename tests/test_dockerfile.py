"""The Dockerfile by its instructions: what is cached, what is copied, who runs it, what it may reach.

That it builds, and runs with a read-only root, is shown on the test cluster (tests/cluster/).
"""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from workflows.templates import CACHES_MOUNT, environment

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [
        (word, rest.strip())
        for word, _, rest in (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    ]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def rests(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for w, rest in stage if w == word]


def settings(stage: list[tuple[str, str]], word: str) -> dict[str, str]:
    """ENV and LABEL as a mapping."""
    pairs = [pair for rest in rests(stage, word) for pair in re.findall(r'([\w.]+)=("[^"]*"|\S*)', rest)]
    return {name: value.strip('"') for name, value in pairs}


def test_the_base_is_a_build_argument_of_every_stage():
    first = instructions()[0]
    assert first[0] == "ARG" and re.fullmatch(r"BASE=\S+python:3\.11\S*", first[1])
    assert [rests(stage, "FROM")[0].split()[0] for stage in stages()] == ["${BASE}"] * 3


def test_dependencies_come_first_and_know_nothing_of_the_code():
    listed, build, final = stages()
    assert rests(listed, "COPY") == ["pyproject.toml ."] and rests(listed, "FROM")[0].endswith(" AS requirements")
    (wanted,) = rests(build, "COPY")  # what only developers install is not in it
    assert wanted.split()[0] == "--from=requirements" and wanted.endswith("requirements.txt")
    assert "pip" not in rests(listed, "RUN")[0] and "pip install" in rests(build, "RUN")[0]
    assert rests(final, "COPY")[0].startswith("--from=dependencies ")
    words = [word for word, _ in final]
    late = min(words.index("ARG"), words.index("LABEL"))
    assert not {"RUN", "COPY"} & set(words[late:]), "another commit would rebuild what comes after it"
    assert not [rest for _, rest in listed + build if "COMMIT" in rest or "BRANCH" in rest]


def dependency_lines(extra: str) -> subprocess.CompletedProcess[str]:
    (run,) = rests(stages()[0], "RUN")
    code = re.search(r'python3 -c "([^"]*)" "\$\{EXTRA\}"', run)
    assert code
    return subprocess.run([sys.executable, "-c", code[1], extra], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("extra", ["", "gpu", "gpu-cu12"])
def test_each_variant_installs_the_projects_own_ranges(extra):
    wanted = [*PROJECT["project"]["dependencies"]]
    wanted += PROJECT["project"]["optional-dependencies"][extra] if extra else []
    assert dependency_lines(extra).stdout.splitlines() == wanted


def test_an_unknown_variant_fails_the_build():
    done = dependency_lines("gpu-cu11")
    assert done.returncode != 0 and "gpu-cu11" in done.stderr


def test_nothing_but_the_package_index_is_asked():
    text = " ".join(rest for stage in stages() for rest in rests(stage, "RUN"))
    assert not re.search(r"\b(apt|apt-get|apk|curl|wget|git|conda)\b|https?://|ADD ", text)
    assert not [word for word, _ in instructions() if word == "ADD"]


def test_old_builders_can_read_it():
    text = (ROOT / "Dockerfile").read_text()
    assert "--mount" not in text and "<<" not in text and not text.startswith("# syntax")


def ignored(path: str) -> bool:
    """By .dockerignore's rule: the last pattern that matches the path or a folder above it decides."""
    names = [path, *(str(p) for p in Path(path).parents if str(p) != ".")]
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().lstrip("!").removeprefix("**/")
        if line.strip() and not line.startswith("#"):
            deep = "**/" in line
            if any(fnmatch(Path(n).name if deep else n, pattern) for n in names):
                verdict = not line.strip().startswith("!")
    return verdict


def test_the_context_is_what_the_image_needs():
    copied = [rest.split()[0] for rest in rests(stages()[-1], "COPY")[1:]]
    packages = [p.rstrip("*") for p in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
    assert sorted(copied) == sorted(packages)
    allowed = {p.name for p in ROOT.iterdir() if not ignored(p.name)}
    assert allowed == {*packages, "pyproject.toml"}
    assert ignored(".git/config") and ignored("tests/conftest.py") and ignored("trainer/__pycache__/x.pyc")
    for kept in ("trainer/profiles/small.toml", "trainer/results/report.html.jinja", "kernels/common.cuh"):
        assert (ROOT / kept).exists() and not ignored(kept)


def test_it_runs_as_nobody_special_and_says_no_entrypoint():
    final = stages()[-1]
    assert rests(final, "USER") == ["1000:1000"]
    assert [word for word, _ in final].index("USER") > max(i for i, (word, _) in enumerate(final) if word == "RUN")
    assert not rests(final, "ENTRYPOINT")
    assert json.loads(rests(final, "CMD")[0])[:3] == ["python", "-m", "trainer"]


def test_caches_lie_where_pods_have_a_volume():
    env = settings(stages()[-1], "ENV")
    of_pods = {e.name: e.value for e in environment() if str(e.value).startswith(CACHES_MOUNT)}
    assert of_pods and {name: env.get(name) for name in of_pods} == of_pods
    assert env["PYTHONDONTWRITEBYTECODE"] == "1"
    assert any(f"-m 1777 {CACHES_MOUNT}" in rest for rest in rests(stages()[-1], "RUN"))


def test_commit_and_branch_are_inside():
    final = stages()[-1]
    env, labels = settings(final, "ENV"), settings(final, "LABEL")
    assert (env["FOXHUNT_COMMIT"], env["FOXHUNT_BRANCH"]) == ("${COMMIT}", "${BRANCH}")
    assert labels["org.opencontainers.image.revision"] == "${COMMIT}"
    assert labels["org.opencontainers.image.ref.name"] == "${BRANCH}"
