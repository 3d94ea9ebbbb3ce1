"""The training loop of one fold: resume, step, measure, save, stop. What a step does is the recipe's affair.

A kill at any moment loses at most the steps since the last checkpoint; SIGTERM and Ctrl-C lose none.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import structlog

from trainer.config import RunConfig
from trainer.errors import CrashLoop, FoxhuntError, Interrupted, OutOfMemory
from trainer.learn import checkpoint as ck
from trainer.learn.heartbeat import Heartbeat
from trainer.learn.lease import Lease
from trainer.learn.ledger import OUT_OF_MEMORY, Ledger
from trainer.learn.memory_guard import MemoryGuard, require_memory
from trainer.learn.metrics import MetricsWriter, write_progress
from trainer.logs import log_to

log = structlog.get_logger()


R = TypeVar("R", bound="Recipe")


class Recipe(Protocol):
    """What the loop needs of a recipe."""

    @property
    def step_count(self) -> int: ...

    def step(self) -> None:
        """One step: chooses regions on the host and runs them."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Host copies of every array of kind "state" at this step boundary."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def validate(self) -> dict[str, float]: ...

    def first_bad_array(self) -> str | None:
        """Name of the first weight or optimizer array with a NaN or infinity, if there is one."""


@dataclass
class Outcome:
    """How a fold's training ended: `state_hash` covers every checkpointed array."""

    step: int
    attempt: int
    state_hash: str
    seconds: float


class StopRequest:
    """SIGTERM and SIGINT ask for a save at the next step boundary; a second one is not waited for."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number


def environment_meta(device_name: str) -> dict[str, str]:
    """What decides whether bits repeat on another machine."""
    return {
        "device": device_name if device_name != "cpu" else f"cpu {platform.machine()} {_cpu_model()}",
        "version.python": platform.python_version(),
        "version.numpy": np.__version__,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def find_resume(folder: Path, resume: str, meta: Mapping[str, str]) -> ck.Checkpoint | None:
    """`auto`: newest valid file or none; `none`: from the start; else a path, or CheckpointError."""
    if resume == "none":
        return None
    found = ck.newest_valid(folder) if resume == "auto" else ck.read_checkpoint(Path(resume))
    if found is not None:
        for warning in ck.check_same(found.meta, meta, found.path):
            log.warning("resuming on another machine: the run goes on, bits may differ", what=warning)
    return found


def train(
    build: Callable[[], R],
    run: RunConfig,
    folder: Path,
    fold: int,
    meta: Mapping[str, str],
    resume: str = "auto",
    quiet: bool = False,
    lease_wait_s: float = 0.0,
    heartbeat: Heartbeat | None = None,
) -> tuple[R, Outcome]:
    """Trains what `build()` allocates to `run.n_steps`, once the folder is ours and its memory known to suffice.

    Raises Interrupted after a save on a signal, OutOfMemory after one near the memory limit, FoxhuntError on a
    non-finite loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heartbeat = heartbeat or Heartbeat(fold, run.n_steps)
    with Lease(folder, wait_s=lease_wait_s) as lease, StopRequest() as stop, MemoryGuard() as guard:
        _clear_torn_writes(folder)
        found = find_resume(folder, resume, meta)
        ledger = Ledger(folder)
        log_to(folder / f"log-{ledger.attempt}.txt")
        step = found.step if found else 0
        heartbeat.at(step, ledger.attempt)
        ledger.start(step, guard.limit)
        try:
            require_memory(guard.limit, ledger.memory_too_small)
            guard.require_room("before anything of the training is allocated")
            recipe = build()
            if found is not None:
                recipe.restore(found.arrays)
                log.info("resumed", fold=fold, step=step, path=str(found.path), attempt=ledger.attempt)
            training = _Training(recipe, run, folder, fold, meta, ledger.attempt, lease, stop, guard, heartbeat, quiet)
            outcome = training.run()
        except BaseException as error:
            why, code = _why(error)
            ledger.end(heartbeat.step, why, code)
            raise
        ledger.end(outcome.step, "done", 0)
        return recipe, outcome


def _why(error: BaseException) -> tuple[str, int]:
    """What the ledger says of an end by `error`, and its exit code."""
    match error:
        case OutOfMemory() | CrashLoop():  # what the ledger itself calls a crash loop is refused before
            return OUT_OF_MEMORY, error.exit_code
        case Interrupted():
            return "interrupted", error.exit_code
        case FoxhuntError():
            return "failed: " + str(error).splitlines()[0], error.exit_code
    return f"crashed: {type(error).__name__}: {error}", 1


def _clear_torn_writes(folder: Path) -> None:
    """Removes what a kill in the middle of a write left; the owner of the lease is the only one who writes here."""
    for path in folder.glob(".*.tmp"):
        if not path.name.startswith(".lease."):  # the heartbeat may be writing
            path.unlink(missing_ok=True)


class _Training:
    def __init__(
        self,
        recipe: Recipe,
        run: RunConfig,
        folder: Path,
        fold: int,
        meta: Mapping[str, str],
        attempt: int,
        lease: Lease,
        stop: StopRequest,
        guard: MemoryGuard,
        heartbeat: Heartbeat,
        quiet: bool,
    ):
        self.recipe, self.cfg, self.folder, self.fold = recipe, run, folder, fold
        self.attempt, self.stop, self.guard, self.heartbeat = attempt, stop, guard, heartbeat
        self.writer = ck.CheckpointWriter(folder, meta, before_rename=lease.check)
        self.metrics = MetricsWriter(folder, attempt, run.n_steps, fold, quiet)
        self.saved_step, self.saved_at = recipe.step_count, time.monotonic()
        self.measured_step, self.measured_at = recipe.step_count, time.monotonic()
        self.started = time.monotonic()

    def run(self) -> Outcome:
        recipe, cfg = self.recipe, self.cfg
        write_progress(recipe.step_count, cfg.n_steps)
        self.heartbeat.phase = "training"
        try:
            while recipe.step_count < cfg.n_steps:
                if self.stop.signal is not None:
                    self._interrupt()
                if self.guard.exceeded:
                    self._leave_for_memory()
                recipe.step()
                self._after(recipe.step_count)
            final = self._save()
            self.writer.drain()
            while self.writer.last_step != recipe.step_count:  # the writer raises at its third failure
                final = self._save()
                self.writer.drain()
            self.writer.close()
        except BaseException:
            with suppress(FoxhuntError):  # a write under way is finished; its failure is not the news
                self.writer.close()
            raise
        finally:
            self.metrics.close()
        return Outcome(recipe.step_count, self.attempt, ck.state_hash(final), time.monotonic() - self.started)

    def _after(self, step: int) -> None:
        cfg = self.cfg
        self.heartbeat.at(step, self.attempt)
        if step % cfg.metrics_every == 0 or step == cfg.n_steps:
            self._measure(step)
        minutes = (time.monotonic() - self.saved_at) / 60
        if step < cfg.n_steps and (step % cfg.checkpoint_every == 0 or minutes >= cfg.checkpoint_minutes):
            self._save()

    def _measure(self, step: int) -> None:
        now = time.monotonic()
        values: dict[str, Any] = dict(self.recipe.metrics())
        self._check_finite(step, values)
        if self.cfg.validate_every and step % self.cfg.validate_every == 0:
            values |= self.recipe.validate()
        values["sps"] = round((step - self.measured_step) / max(now - self.measured_at, 1e-9), 2)
        if self.writer.last_step is not None and self.writer.last_time is not None:
            values["checkpoint_step"] = self.writer.last_step
            values["checkpoint_age_s"] = round(time.time() - self.writer.last_time, 1)
        self.metrics.write(step, values)
        self.heartbeat.spoke()
        self.measured_step, self.measured_at = step, time.monotonic()

    def _check_finite(self, step: int, values: Mapping[str, Any]) -> None:
        losses = [k for k in ("l_q", "l_pi", "l_v", "l_aux") if not np.isfinite(values.get(k, 0.0))]
        bad = self.recipe.first_bad_array() or next(iter(losses), None)
        if bad:
            raise FoxhuntError(
                f"fold {self.fold}, step {step}: {bad} is not finite\n"
                f"the last good checkpoint in {self.folder} is kept; lower learn.lr, or read the metrics before it"
            )

    def _save(self) -> dict[str, np.ndarray]:
        """Hands a snapshot to the writer. Never one with bad weights: it would push out the last good one."""
        self._check_finite(self.recipe.step_count, {})
        arrays = self.recipe.snapshot()
        self.writer.submit(self.recipe.step_count, arrays)
        self.saved_step, self.saved_at = self.recipe.step_count, time.monotonic()
        return arrays

    def _interrupt(self) -> None:
        assert self.stop.signal is not None
        name = signal.Signals(self.stop.signal).name
        if not self._saved_now():
            raise Interrupted(f"{name} at step {self.recipe.step_count}, and the save failed; see the log above")
        raise Interrupted(
            f"{name}: saved at step {self.recipe.step_count} of {self.cfg.n_steps} in {self.folder}\n"
            "run the same command again to go on"
        )

    def _leave_for_memory(self) -> None:
        done = f"{self.guard.describe()}; step {self.recipe.step_count} of {self.cfg.n_steps}"
        if not self._saved_now():
            raise OutOfMemory(f"{done}, and the save failed; see the log above")
        raise OutOfMemory(
            f"{done} is saved in {self.folder}\n"
            "run the same command again with more memory, or with a smaller env.n_backtests or learn.per_capacity"
        )

    def _saved_now(self) -> bool:
        """Saves and waits for the file; False when it could not be written."""
        self._save()
        self.writer.close()
        return self.writer.last_step == self.recipe.step_count
