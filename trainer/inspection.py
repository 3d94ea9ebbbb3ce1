"""What a checkpoint holds, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.learn.checkpoint import VERSION, read_checkpoint, state_hash


def inspect_checkpoint(path: Path, as_json: bool = False) -> None:
    """Verifies the file and prints its manifest. Raises CheckpointError, one message for each way of being wrong."""
    found = read_checkpoint(path)
    arrays = {name: (str(a.dtype), list(a.shape), a.nbytes) for name, a in found.arrays.items()}
    if as_json:
        listed = {name: {"dtype": d, "shape": s, "bytes": n} for name, (d, s, n) in arrays.items()}
        print(json.dumps({"step": found.step, "state": state_hash(found.arrays), "meta": found.meta, "arrays": listed}))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    size = path.stat().st_size / 2**20
    print(f"{path}: format {VERSION}, step {found.step}, {size:.1f} MiB, CRC32C right")
    print(f"state {state_hash(found.arrays)}")
    for key, value in sorted(found.meta.items()):
        print(f"  {key} = {value}")
    table = Table("array", "dtype", "shape", "KiB", title=f"{len(arrays)} arrays")
    for name, (dtype, shape, size) in arrays.items():
        table.add_row(name, dtype, " x ".join(map(str, shape)), f"{size / 1024:,.1f}")
    console.print(table)
