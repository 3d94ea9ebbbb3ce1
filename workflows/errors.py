"""What a user can do wrong with a workflow, and the exit code it ends with.

The first line of a message says what is wrong and where, the last what to do.
"""


class WorkflowError(Exception):
    """Base of all errors raised on purpose; a bug in ours unless a subclass says otherwise."""

    exit_code = 1


class UsageError(WorkflowError):
    """A flag, a run-id, a file that is not there."""

    exit_code = 2


class UnsupportedField(WorkflowError):
    """The workflow uses something that the local runner neither does nor knows to be a cluster's business."""

    exit_code = 2


class BadReference(UnsupportedField):
    """A template or task is named that the workflow doesn't have."""


def nearest(word: str, known: list[str]) -> str:
    """ " (did you mean 'x'?)" for the closest of `known`, or "" when none is close."""
    import difflib

    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""
