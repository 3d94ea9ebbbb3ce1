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
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import structlog

from trainer.config import RunConfig
from trainer.device.faults import of_device_error
from trainer.errors import CrashLoop, FoxhuntError, Interrupted, OutOfMemory
from trainer.learn import checkpoint as ck
from trainer.learn.heartbeat import Heartbeat
from trainer.learn.lease import Lease
from trainer.learn.ledger import OUT_OF_MEMORY, Ledger
from trainer.learn.memory_guard import MemoryGuard, require_memory
from trainer.learn.metrics import MetricsWriter, read_metrics, write_progress
from trainer.learn.validation import LAG
from trainer.logs import log_to

log = structlog.get_logger()


R = TypeVar("R", bound="Recipe")


class Recipe(Protocol):
    """What the loop needs of a recipe."""

    @property
    def step_count(self) -> int: ...

    @property
    def env_steps(self) -> int:
        """Decisions of the environment in one step, all backtests together."""

    def step(self) -> None:
        """One step: chooses regions on the host and starts them; waits for none of them."""

    def freeze(self) -> Callable[[], Mapping[str, np.ndarray]]:
        """Takes the state of this step boundary; the function waits for host copies, good until the next call."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def metrics(self, lag: int = 0) -> dict[str, float]:
        """Figures of the newest step, which waits for it, or with `lag` 1 of the one before."""

    def went_bad(self, lag: int = 0) -> bool:
        """Whether a gradient was not finite up to that step."""

    def begin_validation(self, lag: int) -> None:
        """Starts a validation pass with the weights of now; its result is due after `lag` more steps."""

    def validated(self, last: bool = False) -> dict[str, float]:
        """After each step: the figures of a pass that is due, or at the `last` step of one under way, else none."""

    def first_bad_array(self, arrays: Mapping[str, np.ndarray] | None = None) -> str | None:
        """Name of the first weight or optimizer array with a NaN or infinity, if there is one: of a snapshot, or of
        now, which waits for it."""


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

    Raises Interrupted after a save on a signal, OutOfMemory after one near the memory limit, DeviceLost when the GPU
    fails, FoxhuntError on a non-finite loss or a bug that shows on the GPU.
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
            fault = of_device_error(error)
            why, code = _why(fault or error)
            ledger.end(heartbeat.step, why, code)
            if fault is not None:
                raise fault from error
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
        self.writer = ck.CheckpointWriter(folder, meta, before_rename=lease.check, verify=self._verify)
        self.metrics = MetricsWriter(folder, attempt, run.n_steps, fold, quiet)
        self.saved_at = self.measured_at = self.started = time.monotonic()
        self.measured_step = recipe.step_count
        # The line of the step from which we resume is ours to write, if a kill came between that step and its line.
        told = [line["step"] for line in read_metrics(folder) if line["step"] <= recipe.step_count]
        self.told_step = told[-1] if told else 0
        self.validation: dict[str, float] = {}  # figures that no line has told yet

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
            final = self._finish()
        except BaseException:
            with suppress(Exception):  # a write under way is finished; its failure is not the news
                self.writer.close()
            raise
        finally:
            self.metrics.close()
        return Outcome(recipe.step_count, self.attempt, ck.state_hash(final), time.monotonic() - self.started)

    def _after(self, step: int) -> None:
        """What is due at the boundary after `step`. The device may still be at work on it: figures are those of the
        step before, and nothing here waits for more than that."""
        self.heartbeat.at(step, self.attempt)
        self.writer.check()
        self._observe(step - 1, lag=1)
        self._validate(step)
        minutes = (time.monotonic() - self.saved_at) / 60
        if step < self.cfg.n_steps and (
            step % self.cfg.checkpoint_every == 0 or minutes >= self.cfg.checkpoint_minutes
        ):
            self._save()

    def _finish(self) -> Mapping[str, np.ndarray]:
        """The last line and the last checkpoint, written; returns its arrays. No validation is left under way."""
        self.validation |= self.recipe.validated(last=True)
        self._observe(self.recipe.step_count, lag=0)
        final = self._save()
        self.writer.drain()
        while self.writer.last_step != self.recipe.step_count:  # the writer raises at its third failure
            final = self._save()
            self.writer.drain()
        self.writer.close()
        return final()

    def _observe(self, step: int, lag: int) -> None:
        """Waits for `step`, `lag` steps ago: the host is never further ahead. A step that went bad ends the run there
        and then; what was frozen in the meantime, `_verify` keeps out of the checkpoints."""
        if self.recipe.went_bad(lag):
            self._fail(step, self.recipe.first_bad_array() or "opt.grad")
        if step > self.told_step and (step % self.cfg.metrics_every == 0 or step == self.cfg.n_steps):
            self._measure(step, lag)

    def _measure(self, step: int, lag: int) -> None:
        now = time.monotonic()
        values: dict[str, Any] = dict(self.recipe.metrics(lag))
        bad = next((k for k in ("l_q", "l_pi", "l_v", "l_aux") if not np.isfinite(values.get(k, 0.0))), None)
        if bad:
            self._fail(step, self.recipe.first_bad_array() or bad)
        values |= self.validation
        rate = (step - self.measured_step) / max(now - self.measured_at, 1e-9)
        values |= {"sps": round(rate, 2), "env_steps_per_s": round(rate * self.recipe.env_steps)}
        if self.writer.last_step is not None and self.writer.last_time is not None:
            values["checkpoint_step"] = self.writer.last_step
            values["checkpoint_age_s"] = round(time.time() - self.writer.last_time, 1)
        self.metrics.write(step, values)
        self.heartbeat.spoke()
        self.validation = {}
        self.told_step = self.measured_step = step
        self.measured_at = time.monotonic()

    def _validate(self, step: int) -> None:
        self.validation |= self.recipe.validated()
        every = self.cfg.validate_every
        if every and step % every == 0:
            self.recipe.begin_validation(min(LAG, every))

    def _fail(self, step: int, bad: str) -> NoReturn:
        raise FoxhuntError(
            f"fold {self.fold}, step {step}: {bad} is not finite\n"
            f"the last good checkpoint in {self.folder} is kept; lower learn.lr, or read the metrics before it"
        )

    def _verify(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """On the writer's thread: a checkpoint with bad weights would push out the last good one."""
        bad = self.recipe.first_bad_array(arrays)
        if bad:
            self._fail(step, bad)

    def _save(self) -> Callable[[], Mapping[str, np.ndarray]]:
        """Hands a snapshot to the writer, once the write before it has ended."""
        self.writer.drain()
        arrays = self.recipe.freeze()
        self.writer.submit(self.recipe.step_count, arrays)
        self.saved_at = time.monotonic()
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
        self._observe(self.recipe.step_count, lag=0)
        self._save()
        self.writer.close()
        return self.writer.last_step == self.recipe.step_count
