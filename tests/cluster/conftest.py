"""Fixtures of the live tests: the cluster of FOXHUNT_TEST_KUBECONFIG, one that is up, or one for this session."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import builds, cluster, host
from tests.cluster.layout import ADMIN, Facts
from tests.cluster.live import Live, find_kubectl
from tests.cluster.undisturbed import Undisturbed, run_undisturbed


@pytest.fixture(scope="session", autouse=True)
def _hears_ctrl_c() -> None:
    """What a shell starts in the background is deaf to Ctrl-C, and so are its children; tests send it to theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """A cluster with the templates installed. Skips, with the reason, where none can be had."""
    if given := os.environ.get("FOXHUNT_TEST_KUBECONFIG"):
        there = Live(Path(given), find_kubectl(), None)
        yield there
        there.end()
        return
    was_up = cluster.is_up()
    with host.or_skip():
        facts = cluster.up()
    there = Live(ADMIN, str(builds.program("kubectl")), facts)
    try:
        yield there
        there.end()
    finally:
        if not was_up:
            cluster.down()


@pytest.fixture(scope="session")
def own(live: Live) -> tuple[Live, Facts]:
    """A cluster of our own, for tests that look at the claim or hurt its machines."""
    if live.facts is None:
        pytest.skip("needs the tests' own cluster, and FOXHUNT_TEST_KUBECONFIG names another")
    return live, live.facts


@pytest.fixture(autouse=True)
def _in_time(request: pytest.FixtureRequest) -> None:
    """Comes after the fixtures of the session, so after the builds."""
    if request.node.get_closest_marker("cluster") and (reason := host.time_is_up()):
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves pods behind that the next would wait for."""
    yield
    if "live" in request.fixturenames or "own" in request.fixturenames:
        request.getfixturevalue("live").clean()


@pytest.fixture(scope="session")
def undisturbed(own: tuple[Live, Facts], measured: Callable[[str, float], None]) -> Undisturbed:
    found = run_undisturbed(own[0])
    measured("submit to three running pods, seconds", found.three_running_s)
    measured("undisturbed study, seconds", found.total_s)
    return found


_FIGURES: list[str] = []


@pytest.fixture(scope="session")
def measured() -> Callable[[str, float], None]:
    """Notes a figure for the summary at the end of the session."""
    return lambda what, value: _FIGURES.append(f"{what}: {value:.1f}".removesuffix(".0"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("measured on the cluster")
        for line in _FIGURES:
            terminalreporter.write_line(line)
