"""Memory on a device by arena, and whether a run fits before any of it is allocated.

An arena is what shares the first part of its name: "market", "rollout", "joint" (activations of the online pass), ...
"""

from __future__ import annotations

from collections.abc import Mapping

from trainer.errors import DeviceMemory

RESERVE = 384 << 20  # bytes that come later: machine code of the kernels, graphs, what libraries keep
SHOWN = 4  # arenas named in an error
SMALLER = {
    "market": "a coarser data.sample, or a shorter series",
    "replay": "a smaller learn.per_capacity",
    "rollout": "a smaller env.n_backtests",
    "act": "a smaller env.n_backtests or net.d_model",
    "joint": "a smaller learn.batch, env.n_backtests or net.d_model",
    "next": "a smaller learn.batch or net.d_model",
    "eval": "a shorter series",
    "log": "a shorter series",
    "judgement": "more folds, a shorter series or a coarser data.sample",
    "validation": "a smaller folds.validation_share, or a shorter series",
}


def mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def by_arena(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each arena, largest first, from bytes by array name."""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        arena = name.partition(".")[0]
        found[arena] = found.get(arena, 0) + size
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def require_room(sizes: Mapping[str, int], free: int) -> None:
    """Raises DeviceMemory when arrays of these sizes (bytes by name) do not fit into `free` bytes."""
    arenas = by_arena(sizes)
    need = sum(arenas.values())
    if need > free - RESERVE:
        raise DeviceMemory(
            f"GPU memory: {mib(need)} are needed ({listed(arenas)}), and {mib(max(free - RESERVE, 0))} are free; "
            f"take {smaller(arenas)}",
            arenas,
            free - RESERVE,
        )


def smaller(arenas: Mapping[str, int]) -> str:
    """What makes the largest arena smaller that a setting can make smaller."""
    known = (SMALLER[name] for name in arenas if name in SMALLER)
    return next(known, "a smaller env.n_backtests or net.d_model") + ", or a card with more memory"


def listed(arenas: Mapping[str, int]) -> str:
    """The largest arenas with their sizes, and the rest as one."""
    first = [f"{name} {mib(size)}" for name, size in list(arenas.items())[:SHOWN]]
    rest = sum(list(arenas.values())[SHOWN:])
    return ", ".join([*first, f"others {mib(rest)}"] if rest else first)
