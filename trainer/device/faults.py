"""What an error of CUDA is to the user: a card that is gone, memory that ran out, or a bug.

CUDA reports late: a kernel's fault shows at some later call. So an error names the region launched last.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainer.device.base import Region
from trainer.device.memory import mib
from trainer.device.probe import Management, first_line
from trainer.errors import DeviceLost, DeviceMemory, FoxhuntError

OUT_OF_MEMORY = 2
# Not the program's doing, and another attempt may meet a card that works: devices unavailable, none or another device
# there, start-up failed, uncorrectable memory error, NVLink, contained, timeout of the operating system, hardware stack
# error, operating system, system not ready, driver changed under us, MPS (its server's failures), unknown.
LOST = {46, 100, 101, 127, 214, 220, 226, 304, 702, 714, 802, 803, *range(805, 811), 999}
_CUBLAS_MEMORY = 3
AGAIN = "what was saved is kept; run the same command again"


def of_device_error(error: BaseException, others: Mapping[int, int | None] | None = None) -> FoxhuntError | None:
    """The user's side of an exception of cupy, CUDA or cuBLAS; None for any other exception.

    `others`: processes on the card but this one, found out when not given.
    """
    if not _of_cuda(error):
        return None
    status = getattr(error, "status", None)
    blas = type(error).__name__.startswith("cuBLAS")
    if blas and status != _CUBLAS_MEMORY and (cause := _cause()) is not None:
        return of_device_error(cause, others)
    card = _management()
    if isinstance(error, MemoryError) or status == (_CUBLAS_MEMORY if blas else OUT_OF_MEMORY):
        return out_of_memory(first_line(error), card.others() if others is None and card else others or {})
    where = f"last launched: {Region.launched}" if Region.launched else "before any region was launched"
    if (not blas and status in LOST) or (card is not None and card.lost()):
        return DeviceLost(
            f"the GPU failed or was taken away ({first_line(error)}; {where}); {AGAIN}, "
            "on another card if it happens again (nvidia-smi -q shows errors)"
        )
    return FoxhuntError(
        f"the GPU refused or broke a call ({first_line(error)}; {where}); "
        "this is a bug: `compute-sanitizer python -m trainer ...` shows the place"
    )


def out_of_memory(what: str, others: Mapping[int, int | None]) -> FoxhuntError:
    """Another process may leave, so with one on the card it is worth another attempt; alone it would end the same."""
    if others:
        sizes = ", ".join(f"pid {pid} {'?' if used is None else mib(used)}" for pid, used in others.items())
        return DeviceLost(f"GPU memory ran out beside other processes ({sizes}): {what}; {AGAIN} once they are gone")
    return DeviceMemory(
        f"GPU memory ran out: {what}; take a smaller env.n_backtests, learn.batch or net.d_model, a coarser "
        "data.sample, or a card with more memory"
    )


def _of_cuda(error: BaseException) -> bool:
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & {"cupy", "cupy_backends", "nvmath"})


def _cause() -> BaseException | None:
    """What CUDA itself says after cuBLAS failed with no more than "execution failed"."""
    try:
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
    except Exception as error:
        return error
    return None


def _management() -> Management | None:
    try:
        import cupy

        from trainer.device.probe import management

        return management(cupy)
    except Exception:  # the card does not even say its name: the error at hand is the news
        return None
