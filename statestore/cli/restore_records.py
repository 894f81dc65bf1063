"""The measured restores of each store on this machine, to predict the time of the next one.

They are in one small JSON file in the user's cache folder, by store id. This is only a convenience,
so failures to read or write the file are ignored. A record names no host, path or state.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statestore.cli.drawing import counted, duration, size, when
from statestore.restore.export import ExportedCheckpoint
from statestore.restore.plan import RestorePlan
from statestore.restore.restart_time import MeasuredRestore, RestoreSpeed, predict

__all__ = [
    "MOST_RESTORES",
    "MOST_STORES",
    "keep_restore",
    "kept_restores",
    "measured_restore",
    "rates_file",
    "speed_source",
    "speed_text",
    "unknown_rate",
]

MOST_STORES = 100
MOST_RESTORES = 20


def measured_restore(
    plan: RestorePlan, exported: ExportedCheckpoint, known: tuple[MeasuredRestore, ...]
) -> MeasuredRestore | None:
    """Return the slowest subtask of a restore that ended now; None if it restored nothing.

    Args:
        plan: The plan of the restore.
        exported: Its result.
        known: The restores of the store before it, from which its time is predicted.
    """
    if not exported.seconds:
        return None
    operator, subtask = max(exported.seconds, key=exported.seconds.__getitem__)
    reads = plan.operator(operator).subtasks[subtask]
    return MeasuredRestore(
        at_ms=time.time_ns() // 1_000_000,
        checkpoint_id=plan.checkpoint_id,
        parallelism=plan.parallelism,
        size_bytes=reads.size_bytes,
        requests=reads.requests,
        seconds=max(exported.seconds[operator, subtask], 1e-6),
        predicted_seconds=predict(plan.parallelism, [*plan.subtasks], known).seconds,
    )


def rates_file(environment: Mapping[str, str]) -> Path:
    """Return the file: below ``XDG_CACHE_HOME``, by default ``~/.cache``.

    Raises:
        FileNotFoundError: ``XDG_CACHE_HOME`` is not set, and the user has no home.
    """
    try:
        folder = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home") from error
    return Path(folder, "statestore", "restore-rates.json")


def kept_restores(environment: Mapping[str, str], store_id: str) -> tuple[MeasuredRestore, ...]:
    """Return the last restores of a store on this machine, oldest first."""
    known = _known(environment).get(store_id)
    try:
        restores = tuple(MeasuredRestore(**one) for one in known or ())
        is_usable = all(
            0 < one.seconds < float("inf") and one.size_bytes >= 0 and one.requests >= 0
            for one in restores
        )
    except TypeError:  # of an older release, or damaged
        return ()
    return restores if is_usable else ()


def keep_restore(environment: Mapping[str, str], store_id: str, restore: MeasuredRestore) -> None:
    """Store a restore; the last ones of each store, and of the last stores, are kept."""
    restores = (*kept_restores(environment, store_id), restore)[-MOST_RESTORES:]
    others = [one for one in _known(environment).items() if one[0] != store_id]
    known = dict([*others[1 - MOST_STORES :], (store_id, [*map(asdict, restores)])])
    with suppress(OSError):  # a restore must not fail because of the cache
        path = rates_file(environment)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(known, indent=1) + "\n")
        aside.replace(path)


def speed_text(speed: RestoreSpeed) -> str:
    """Return what a subtask takes."""
    parts = [] if speed.rate is None else [f"{size(round(speed.rate))}/s"]
    if speed.seconds_per_request:
        parts.append(f"{duration(1000 * speed.seconds_per_request)} per request")
    if speed.seconds_at_least:
        parts.append(f"{duration(1000 * speed.seconds_at_least)} in any case")
    return ", ".join(parts)


def speed_source(restores: Sequence[MeasuredRestore]) -> str:
    """Return where a speed is from: these restores on this machine, or the setting."""
    if not restores:
        return "the setting"
    restored = counted(len(restores), "restore")
    return f"as {restored} on this machine took, the last at {when(restores[-1].at_ms)}"


def unknown_rate() -> str:
    """Return why the time of a restore is unknown, and what to do."""
    return (
        "unknown, because no restore of this store was measured on this machine; run 'statestore "
        "restore', or set restore_rate (STATESTORE_RESTORE_RATE), for example to 200MB/s"
    )


def _known(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        known = json.loads(rates_file(environment).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
