"""Even and balanced ranges side by side, as JSON."""

from __future__ import annotations

from typing import Any

from statestore.restore.skew import RangeSkew

__all__ = ["skew_document"]


def skew_document(skew: RangeSkew) -> dict[str, Any]:
    """Return the numbers of a skew: ``even`` and ``balanced`` have one of each subtask."""
    return {
        "uid": skew.uid,
        "by": skew.by.value,
        "even": list(skew.even),
        "balanced": list(skew.balanced),
        "largest_even": max(skew.even),
        "largest_balanced": max(skew.balanced),
        "times_mean_even": round(skew.ratio(skew.even), 4),
        "times_mean_balanced": round(skew.ratio(skew.balanced), 4),
        "gain": round(skew.gain, 4),
    }
