"""Write rows that were added, removed or changed, with what changed in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statestore.cli.output import Page, json_text
from statestore.maintenance.diff_report import Example

__all__ = ["write_row_changes"]

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}


def write_row_changes(page: Page, examples: Sequence[Example], *, total: int) -> None:
    """Write one line for each row, and ``…`` if there are more than these.

    A changed row is its identity, and each changed column before and after.
    """
    for example in examples:
        group = "" if example.key_group is None else f"  (key group {example.key_group})"
        text = f"  {_SIGNS[example.change]} {_row_text(example)}{group}"
        page.line(text, _STYLES[example.change])
    if examples and len(examples) < total:
        page.line("  …")


def _row_text(example: Example) -> str:
    before, after = example.a, example.b
    if before is None or after is None:
        return json_text(dict(before or after or {}))
    names = dict.fromkeys([*before, *after])
    differ = [name for name in names if _text(before, name) != _text(after, name)]
    # An element of operator state has no identity: its other columns tell which one it is.
    known = example.identity or {name: before[name] for name in names if name not in differ}
    changes = [f"{name}: {_text(before, name)} → {_text(after, name)}" for name in differ]
    return "  ".join([*([json_text(dict(known))] if known else []), *changes])


def _text(row: Mapping[str, Any], name: str) -> str:
    return json_text(row[name]) if name in row else "no column"
