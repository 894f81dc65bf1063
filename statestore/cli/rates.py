"""How fast the last restore of a store was on this machine, for expected seconds of the next one.

One small JSON file in the user's cache folder, by store id. It is a convenience: what cannot be
read is not known, and what cannot be written is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Rate", "keep_rate", "kept_rate", "rates_file"]

MOST_STORES = 100


@dataclass(frozen=True)
class Rate:
    """What a restore read, in how many seconds, one subtask after the other, and when it ended."""

    size_bytes: int
    seconds: float
    at_ms: int

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second, above 0."""
        return self.size_bytes / self.seconds


def rates_file(environment: Mapping[str, str]) -> Path:
    """Return where rates are kept: below ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    folder = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(folder, "statestore", "restore-rates.json")


def kept_rate(environment: Mapping[str, str], store_id: str) -> Rate | None:
    """Return the rate of the last restore of a store, None when none is known."""
    known: Any = _known(rates_file(environment)).get(store_id)
    try:
        rate = Rate(int(known["size_bytes"]), float(known["seconds"]), int(known["at_ms"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return rate if rate.size_bytes > 0 and 0 < rate.seconds < float("inf") else None


def keep_rate(environment: Mapping[str, str], store_id: str, rate: Rate) -> None:
    """Keep the rate of a restore, and those of the last other stores; one that read nothing says
    nothing.
    """
    if rate.size_bytes <= 0 or rate.seconds <= 0:
        return
    path = rates_file(environment)
    others = [one for one in _known(path).items() if one[0] != store_id]
    known = dict([*others[1 - MOST_STORES :], (store_id, asdict(rate))])
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):  # a restore does not fail for want of a cache
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(known, indent=1) + "\n")
        aside.replace(path)


def _known(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
