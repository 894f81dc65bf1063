"""Write a report on a store: one HTML file of limited size, without scripts, forms and network.

The report has sections, and each of these has parts. The most important parts are added until the
file is full. A part that does not fit is replaced by a sentence.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from statestore.catalog.catalog import CheckpointRef
from statestore.extras import needs_extra
from statestore.listeners import Progress, ignore_progress
from statestore.restore.output import check_output_file, output_file
from statestore.store import StateStore
from statestore.ui.pages import render_template, static
from statestore.ui.report_parts import Section, collect_sections, left_out_of

with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup

__all__ = ["MOST_BYTES", "Report", "write_report"]

MOST_BYTES: Final = 300_000
"""The largest size of a report."""


@dataclass(frozen=True)
class Report:
    """The size of a written report, and the parts of the store that it does not contain."""

    size_bytes: int
    left_out: tuple[str, ...]


def write_report(
    store: StateStore,
    to: str,
    which: CheckpointRef = "latest",
    *,
    against: CheckpointRef | None = None,
    progress: Progress = ignore_progress,
) -> Report:
    """Write the report atomically, at most :data:`MOST_BYTES` large.

    It shows the given checkpoint with its largest states, the newest checkpoints, and restores at
    several parallelisms. With ``against``, it also shows the differences from that checkpoint, for
    which the rows of both are read. ``progress`` receives the number of finished parts and the
    total.

    Raises InvalidArgumentError if the place of the file is invalid, StorageError if it cannot be
    written, and the errors of the parts.
    """
    target = Path(to)
    check_output_file(target, replace=True)
    base = None if against is None else store.checkpoint(against)
    sections = collect_sections(store, store.checkpoint(which), base, progress)
    text, left_out = _fit(store.url, sections)
    page = text.encode()
    with output_file(target, replace=True) as file:
        file.write(page)
    return Report(len(page), left_out)


def _fit(url: str, sections: Sequence[Section]) -> tuple[str, tuple[str, ...]]:
    """Return the page with as many parts as fit, and the names of the others."""
    now_ms = time.time_ns() // 1_000_000
    room = MOST_BYTES - len(_page(url, sections, now_ms)[0].encode())
    parts = [part for section in sections for part in section.parts]
    shown: set[str] = set()
    for part in sorted(parts, key=lambda part: part.rank):
        needed = len(part.html.encode())
        if needed <= room:
            shown.add(part.anchor)
            room -= needed
    return _page(url, [_with_shown(section, shown) for section in sections], now_ms)


def _with_shown(section: Section, shown: set[str]) -> Section:
    parts = tuple(replace(part, is_shown=part.anchor in shown) for part in section.parts)
    return replace(section, parts=parts)


def _page(url: str, sections: Sequence[Section], now_ms: int) -> tuple[str, tuple[str, ...]]:
    left_out = tuple(left_out_of(sections))
    style = static("charts.css") + static("report.css")
    facts = {
        "title": sections[0].title,
        "store": url,
        "written_at_ms": now_ms,
        "sections": sections,
        "left_out": left_out,
        "most_bytes": MOST_BYTES,
        "style": Markup(style),  # a style sheet has no references to characters
        "style_hash": _hash(style),
    }
    return render_template("report/page.html", facts), left_out


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
