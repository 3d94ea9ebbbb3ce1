"""How a study on a cluster looks: one screen for all folds on a terminal, plain lines at changes elsewhere.

`lines` makes the screen as text, a fold a line with what needs attention under it; nothing in it depends on a terminal.
"""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TextIO

from workflows import status
from workflows.status import Study, Task

Line = tuple[str, str]  # style, text

_MARKS = {
    status.SUCCEEDED: ("green", "✓"),
    status.FAILED: ("red", "✗"),
    status.ERROR: ("red", "✗"),
    status.PENDING: ("dim", "…"),
    status.BACKOFF: ("yellow", "↻"),
}
_BAR = 12
_FIGURES = ("l_q", "entropy", "wr", "hold_pct")
_JUDGED = ("wr", "hold-pct")  # output parameters of a fold
_PLAIN_EVERY = 30.0  # seconds between plain lines of a fold that only moved on
_PAST_SHOWN = 3
_NOT_RETRIED = "retryStrategy.expression evaluated to false"  # every failure that isn't retried says so
_WIDE, _HEADED = 140, 100  # terminals with room for figures, and where those begin


def duration(seconds: float | None) -> str:
    """ "42s", "3m10s", "2h05m", "4d03h"; "" for none."""
    if seconds is None:
        return ""
    whole = int(seconds)
    for size, name, small, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{name}{whole % size // small:02d}{below}"
    return f"{whole}s"


def lines(study: Study, width: int = 100, height: int = 50, now: float = 0.0, footer: str = "") -> list[Line]:
    """The screen, at most `height` lines of at most `width` characters. Folds without news are summed up first."""
    head = [("bold", _title(study, now)), ("", _others(study))]
    if study.trouble:
        head.append(("red", f"! {study.trouble.text}: {study.trouble.todo}"))
    if study.message and study.over:
        head.append(("red" if study.phase != status.SUCCEEDED else "", f"  {study.message}"))
    table = [("dim", _HEADINGS)] if study.folds else []
    foot = [("dim", footer)] if footer else []
    room = height - len(head) - len(table) - len(foot)
    body = _fold_lines(study.folds, room, width)
    return [(style, text[:width].rstrip()) for style, text in [*head, *table, *body, *foot]]


_HEADINGS = f"  {'FOLD':<22} {'':<{_BAR}}  {'STEP':>13} {'RATE':>8} {'ETA':>6} {'SAVED':>6} {'TRY':>3}  NODE"


def _title(study: Study, now: float) -> str:
    run = "" if study.run_id in ("", study.name) else f"run {study.run_id}  "
    age = "" if study.started is None else duration((study.finished or now) - study.started)
    stopping = f" ({study.shutdown.lower()} asked)" if study.shutdown and not study.over else ""
    return f"{run}{study.name}  {study.phase}{stopping} {age}"


def _others(study: Study) -> str:
    """The tasks beside the folds, in one line."""
    words = []
    for task in study.tasks:
        if task.fold is not None:
            continue
        mark = _MARKS.get(task.phase, ("", "▸"))[1]
        said = {status.GATE: task.outputs.get("verdict", "")}.get(task.task, "") if task.phase in status.OVER else ""
        if task.phase == status.PENDING:
            said = task.pending
        elif task.trouble:
            said = f"{task.trouble.text}: {task.trouble.todo}"
        elif task.phase != status.SUCCEEDED:
            said = _own_reason(task) or (task.past[-1].why if task.past else "")
        words.append(f"{mark} {task.name}{' ' + said if said else ''}")
    return "  " + "   ".join(words)


def _fold_lines(folds: list[Task], room: int, width: int) -> list[Line]:
    """Folds one by one where they fit; else without their past; else the done and the waiting ones as one line each."""
    for past in (_PAST_SHOWN, 0):
        full = [line for task in folds for line in fold_block(task, width, past)]
        if len(full) <= room:
            return full
    quiet = [t for t in folds if t.phase in (status.SUCCEEDED, status.PENDING) and not t.trouble]
    loud = [task for task in folds if task not in quiet]
    sums = [("dim", text) for text in _sums(quiet)]
    shown: list[Line] = []
    for number, task in enumerate(sorted(loud, key=lambda t: t.trouble is None)):
        block = fold_block(task, width, past=0)
        if len(shown) + len(block) + len(sums) + 1 > room:
            shown.append(("dim", f"  and {_count(len(loud) - number, 'more fold')} at work"))
            break
        shown += block
    return [*shown, *sums]


def _sums(quiet: list[Task]) -> list[str]:
    done = [task for task in quiet if task.phase == status.SUCCEEDED]
    waiting = [task for task in quiet if task.phase == status.PENDING]
    words = [f"  ✓ {_count(len(done), 'fold')} done"] if done else []
    if waiting:
        words.append(f"  … {_count(len(waiting), 'fold')} waiting: {waiting[0].pending}")
    return words


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def fold_block(task: Task, width: int = 100, past: int = _PAST_SHOWN) -> list[Line]:
    """A fold's line, and under it why it waits, what is wrong with it, why its last `past` attempts ended."""
    style, mark = _MARKS.get(task.phase, ("", "▸"))
    rate = "" if task.rate is None else f"{task.rate:.4g}/s"
    saved = duration(task.checkpoint_age_s) if task.phase not in status.OVER else ""
    tries = str(len(task.attempts)) if task.attempts else ""
    text = (
        f"{mark} {task.label:<22.22} {_bar(task):<{_BAR}}  {_steps(task):>13} {rate:>8} {duration(task.eta_s):>6} "
        f"{saved:>6} {tries:>3}  {_where(task)}"
    )
    if width >= _WIDE:
        text = f"{text:<{_HEADED}}  {_figures(task)}"
    block = [(style, text)]
    if task.pending:
        block += _wrapped("yellow", f"waits: {task.pending}", width)
    if task.phase == status.BACKOFF:
        block += _wrapped("yellow", f"attempt {len(task.attempts) + 1} follows: {task.message or 'soon'}", width)
    if task.trouble:
        block += [*_wrapped("bold red", f"! {task.trouble.text}", width), ("red", f"      type: {task.trouble.todo}")]
    if reason := _own_reason(task):
        block += _wrapped("red", reason, width)
    if not past:
        return block
    if len(task.past) > past:
        block.append(("dim", f"    {len(task.past) - past} earlier attempts: {_kinds(task.past[:-past])}"))
    return block + [("dim", f"    {past_line(attempt)}") for attempt in task.past[-past:]]


def _own_reason(task: Task) -> str:
    """Why a task failed where its last attempt's end doesn't say it, such as a refusal by the controller."""
    if task.phase not in (status.FAILED, status.ERROR) or task.message == _NOT_RETRIED:
        return ""
    return "" if task.past and task.message == task.past[-1].why else task.message


def _wrapped(style: str, text: str, width: int) -> list[Line]:
    """At most two lines: schedulers are wordy."""
    return [(style, f"    {line}") for line in textwrap.wrap(text, max(20, width - 4), max_lines=2, placeholder=" ...")]


def _figures(task: Task) -> str:
    return "  ".join(f"{name} {task.metrics[name]:.3g}" for name in _FIGURES if _shown(task, name))


def _kinds(attempts: list[status.Attempt]) -> str:
    counts: dict[str, int] = {}
    for attempt in attempts:
        counts[attempt.why] = counts.get(attempt.why, 0) + 1
    return ", ".join(f"{why} ({count})" if count > 1 else why for why, count in counts.items())


def past_line(attempt: status.Attempt) -> str:
    """ "attempt 1 on node-a ended after 3m10s: pod deleted"."""
    where = f" on {attempt.node}" if attempt.node else ""
    lived = ""
    if attempt.started is not None and attempt.ended is not None:
        lived = f" after {duration(attempt.ended - attempt.started)}"
    return f"attempt {attempt.number}{where} ended{lived}: {attempt.why}"


def _bar(task: Task) -> str:
    if not task.total or task.step is None:
        return ""
    full = round(_BAR * min(1.0, task.step / task.total))
    return "━" * full + "╌" * (_BAR - full)


def _steps(task: Task) -> str:
    if task.step is None:
        return ""
    return f"{task.step}/{task.total}" if task.total else str(task.step)


def _where(task: Task) -> str:
    if task.phase == status.SUCCEEDED:
        return "  ".join(f"{name.replace('-', '_')} {value}" for name in _JUDGED if (value := task.outputs.get(name)))
    if task.phase in status.OVER:
        return task.phase.lower()
    doing = {status.EVALUATING: "evaluating", status.SAVING: "saving", status.BACKOFF: "retry"}.get(task.phase, "")
    return " ".join(word for word in (doing, task.node) if word)


class LiveScreen:
    """The screen in place, redrawn as a whole; rich writes each frame in one go, so that it doesn't flicker."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=False, vertical_overflow="crop")

    def __enter__(self) -> LiveScreen:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def show(self, study: Study, footer: str) -> None:
        from rich.text import Text

        size = self.console.size
        text = Text(no_wrap=True, overflow="crop")
        for style, line in lines(study, size.width, size.height - 1, time.time(), footer):
            text.append(line + "\n", style=style)
        self.live.update(text, refresh=True)


class PlainLines:
    """A line at each change of a task, and now and then how far a fold is; for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.said: dict[str, tuple[object, float]] = {}
        self.known: set[str] = set()

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.out.flush()

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def show(self, study: Study, footer: str) -> None:
        if study.trouble and study.trouble.text.partition(" for ")[0] not in self.known:
            self.known.add(study.trouble.text.partition(" for ")[0])
            self.say(f"! {study.trouble.text}: {study.trouble.todo}")
        for task in study.tasks:
            self._show_task(task)

    def _show_task(self, task: Task) -> None:
        for attempt in task.past:
            if (key := f"{task.name} {attempt.pod} {attempt.started}") not in self.known:
                self.known.add(key)
                self.say(f"{task.name:<12} {past_line(attempt)}")
        kind = task.trouble.kind if task.trouble else ""
        state, now = (task.phase, len(task.attempts), kind, task.pending), time.monotonic()
        before, then = self.said.get(task.name, (None, 0.0))
        moved = task.phase == status.RUNNING and task.step is not None and now - then >= _PLAIN_EVERY
        if state == before and not moved:
            return
        self.said[task.name] = (state, now)
        self.say(plain_line(task))
        if task.trouble:
            self.say(f"{task.name:<12} ! {task.trouble.text}; type: {task.trouble.todo}")


def plain_line(task: Task) -> str:
    """One task in one line, as a log keeps it."""
    words: list[str] = []
    if task.label != task.name:
        words.append(task.label)
    if len(task.attempts) > 1:
        words.append(f"attempt {len(task.attempts)}")
    if task.pending:
        words.append(f"because {task.pending}")
    if steps := _steps(task):
        words.append(steps)
    if task.rate is not None:
        words.append(f"{task.rate:.4g}/s")
    if task.eta_s is not None:
        words.append(f"ETA {duration(task.eta_s)}")
    if task.checkpoint_age_s is not None and task.phase not in status.OVER:
        words.append(f"saved {duration(task.checkpoint_age_s)} ago")
    if figures := _figures(task):
        words.append(figures)
    if where := _where(task):
        words.append(where)
    if reason := _own_reason(task):
        words.append(reason)
    return f"{task.name:<12} {task.phase.lower():<10} {'  '.join(words)}".rstrip()


def _shown(task: Task, name: str) -> bool:
    return task.phase == status.RUNNING and isinstance(task.metrics.get(name), int | float)
