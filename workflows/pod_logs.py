"""Answers that are read line by line: watches and followed logs, and what a log line of ours tells about a fold."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any

from workflows.argo_nodes import seconds
from workflows.kube import Kube
from workflows.status import PodLog


class LogReader:
    """Turns a pod's time-stamped log lines into what is shown of it; lines that were read before are skipped."""

    def __init__(self, log: PodLog) -> None:
        self.log = log
        self.newest = ""

    def feed(self, line: str) -> bool:
        """True for a line that changes what is shown."""
        stamp, _, text = line.partition(" ")
        at = seconds(stamp)
        if at is None or stamp <= self.newest:
            return False
        self.newest, self.log.seen = stamp, at
        if told := our_line(text):
            self.log.step, self.log.total = told["step"], told.get("total", self.log.total)
            self.log.doing = str(told.get("heartbeat", "training"))
            self.log.stepped = at - float(told.get("step_age_s") or 0.0)
            metrics = {} if "heartbeat" in told else told
            self.log.metrics = metrics or self.log.metrics  # a sign of life moves the step and keeps the figures
            age = metrics.get("checkpoint_age_s")
            if isinstance(age, int | float):
                self.log.checkpoint_step, self.log.checkpoint_time = metrics.get("checkpoint_step"), at - age
            return True
        if "checkpoint saved" in text:
            step = text.rpartition("step=")[2].split(" ")[0]
            self.log.checkpoint_step = int(step) if step.isdecimal() else None
            self.log.checkpoint_time = at
            return True
        return False


def our_line(text: str) -> dict[str, Any]:
    """A metric line or a sign of life of ours; {} for anything else, such as the executor's own JSON lines."""
    if not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("step"), int) and "attempt" in value else {}


def is_executors(text: str) -> bool:
    """A line that Argo's executor wrote into our log, before and after our process (logfmt or JSON, by version)."""
    if text.startswith("Error: exit status "):
        return True
    if text.startswith("time=") and " level=" in text and " msg=" in text:
        return True
    return text.startswith("{") and '"level"' in text and '"msg"' in text and not our_line(text)


def open_stream(kube: Kube, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls a client's method without reading the answer. Raises ClusterError as reading it would have."""

    def opened() -> Any:
        from kubernetes.client.exceptions import ApiException

        response = function(*args, _preload_content=False, **options)
        if response.status >= 300:
            error = ApiException(status=response.status, reason=response.reason)
            error.body = response.data.decode(errors="replace")
            raise error
        return response

    return kube.call(opened)


def read_json(kube: Kube, function: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """A whole answer as plain JSON: the client's strict models cost more than they tell, and refuse what is new."""
    with open_stream(kube, function, *args, **options) as stream:
        return dict(json.loads(kube.call(lambda: stream.data)))


def lines_of(kube: Kube, stream: Any) -> Iterator[str]:
    """Whole lines of an answer. Raises ClusterError when the connection breaks."""
    lines, end = split_lines(stream.stream(decode_content=False)), object()
    while (line := kube.call(next, lines, end)) is not end:
        yield str(line)


def split_lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines of chunks that end anywhere; a character that two chunks share is put together."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    for chunk in chunks:
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from lines
    if rest:
        yield rest
