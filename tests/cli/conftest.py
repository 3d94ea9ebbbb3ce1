"""One study for the process tests, as far as each test needs it."""

import pytest

from tests.cli.processes import Trainer


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Trainer:
    """A study that is precomputed, and nothing else."""
    root = tmp_path_factory.mktemp("prepared")
    trainer = Trainer(root, root / "cache")
    trainer.run("precompute", "--data", "synthetic:rows=3000", "--folds", "1").succeeds("fold 0: train rows", "purge")
    return trainer


@pytest.fixture(scope="session")
def done(prepared, tmp_path_factory) -> Trainer:
    """The same study, trained undisturbed and judged."""
    trainer = prepared.copy(tmp_path_factory.mktemp("done"))
    trainer.run("train", "--fold", "0").succeeds("trained", "judged")
    return trainer


@pytest.fixture
def fresh(prepared, tmp_path) -> Trainer:
    return prepared.copy(tmp_path / "fresh")


@pytest.fixture
def trained(done, tmp_path) -> Trainer:
    return done.copy(tmp_path / "trained")
