"""How often these data were tried: the deflated Sharpe ratio needs it, so the tool counts, not the user."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import UsageError
from trainer.files import append_json, read_json_lines


def trial_ids(runs: Path, data_digest: str) -> list[str]:
    """Distinct run-ids on this data digest, in order of their first registration."""
    return list(dict.fromkeys(str(x["run_id"]) for x in read_json_lines(_path(runs, data_digest)) if "run_id" in x))


def register_trial(runs: Path, data_digest: str, run_id: str) -> int:
    """Notes that `run_id` tries these data; returns the count of distinct run-ids. Raises UsageError.

    One appended line a registration: several processes may register at once, and a run-id written twice counts once.
    """
    path = _path(runs, data_digest)
    if run_id not in trial_ids(runs, data_digest):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_json(path, {"run_id": run_id})
        except OSError as error:
            raise UsageError(
                f"{path}: can't note the trial: {error.strerror}\nchoose a writable folder with --runs"
            ) from None
    return len(trial_ids(runs, data_digest))


def _path(runs: Path, data_digest: str) -> Path:
    if not data_digest or not all(c.isalnum() or c in "-_" for c in data_digest):
        raise UsageError(f"data digest {data_digest!r} is not a plain name\npass the hex digest of the feature cache")
    return Path(runs) / "trials" / f"{data_digest}.jsonl"
