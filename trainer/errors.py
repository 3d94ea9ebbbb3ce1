"""Every failure a user can meet, and the exit code by which workflows act on it.

FoxhuntError                       1  a bug, unless a subclass says otherwise
  UsageError                       2  flags, config keys, run ids
    ConfigError                    2  a config value or key
    DataError                      2  market files and what is in them
    CheckpointError                2  a checkpoint that can't be used
    LeaseError                     2  a fold folder that another process owns
    DeviceMemory                   2  a GPU too small for the settings: more host memory (77) would not help
  GateFailed                       3  the study ran; a gate criterion was not met
  Interrupted                     75  a signal or a transient fault; state saved, run again to go on
    DeviceLost                    75  the GPU failed, was taken away, or is full of another process
  CrashLoop                       76  three unexplained deaths in a row without a new checkpoint
  OutOfMemory                     77  the memory guard fired; state saved

The first line of every message says what is wrong and where; the last says what to do.
"""

import errno
from collections.abc import Mapping


class FoxhuntError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the process ends with."""

    exit_code = 1


class UsageError(FoxhuntError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class DataError(UsageError):
    pass


class CheckpointError(UsageError):
    pass


class LeaseError(UsageError):
    pass


class DeviceMemory(UsageError):
    """`arenas`: bytes needed by arena, `free`: bytes there, where both are known before anything is allocated."""

    def __init__(self, message: str, arenas: Mapping[str, int] | None = None, free: int = 0):
        super().__init__(message)
        self.arenas, self.free = dict(arenas or {}), free


class GateFailed(FoxhuntError):
    exit_code = 3


class Interrupted(FoxhuntError):
    exit_code = 75


class DeviceLost(Interrupted):
    pass


class CrashLoop(FoxhuntError):
    exit_code = 76


class OutOfMemory(FoxhuntError):
    exit_code = 77


_VOLUME = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


def of_os_error(error: OSError) -> FoxhuntError | None:
    """What a failed file operation is to the user: a fault of the volume, a wrong place, or None: a bug."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if error.errno in _VOLUME:
        return Interrupted(f"{what}\nfree some space or check the volume, then run the same command again")
    if error.errno == errno.EEXIST:  # mkdir
        where = f"{error.filename}: a file stands where a folder must be"
        return UsageError(f"{where}\nmove it away, or give another place")
    if error.errno in _PLACE:
        return UsageError(f"{what}\ngive a place that this user may read and write")
    return None


def nearest(word: str, known: list[str]) -> str:
    """ " (did you mean 'x'?)" for the closest of `known`, or "" when none is close."""
    import difflib

    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""
