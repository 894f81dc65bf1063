"""Write a report on a store: one HTML file of limited size, without scripts, forms and network.

The report has sections, and each of these has parts. A part is HTML and has a rank. The most
important parts are added until the file is full. A part that does not fit is replaced by a
sentence.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint, CheckpointRef
from statestore.cli.drawing import count, counted
from statestore.extras import needs_extra
from statestore.format.manifest import Entry, Manifest
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.diff_report import CheckpointDifference, StateDifference
from statestore.maintenance.trend_report import StoreTrend
from statestore.restore.compare_plans import candidates, compare_plans
from statestore.restore.row_files import check_output_file, output_file
from statestore.store import StateStore
from statestore.ui.charts import draw_flow, flows_of
from statestore.ui.checkpoint import (
    SHOWN,
    Window,
    draw_graph,
    draw_key_groups,
    draw_window,
    read_window,
    state_facts,
    status_of,
)
from statestore.ui.pages import render_template, static
from statestore.ui.rescale import PageSpeed
from statestore.ui.trends import TrendQuery, trends

with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup


_LISTED: Final = 100  # states in the table
_STATES: Final = 20  # states with details
_NAMED: Final = 10
_DRAWN: Final = 64  # subtasks at a side of a flow
_GROUPS: Final = 20  # differing key groups of a state
_LONGEST_TITLE: Final = 80


@dataclass(frozen=True)
class Part:
    """A part of a section; a lower rank is more important.

    ``title`` is its heading, empty for none. ``name`` is its name in a sentence.
    """

    anchor: str
    rank: int
    name: str
    html: Markup
    title: str = ""
    is_shown: bool = False


@dataclass(frozen=True)
class Section:
    """A section with its parts; ``left_out`` names what it does not contain at any size."""

    anchor: str
    title: str
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()


def collect_sections(
    store: StateStore, checkpoint: Checkpoint, base: Checkpoint | None, progress: Progress
) -> list[Section]:
    """Return all sections of a report, in their order on the page.

    With ``base``, these include the differences from that checkpoint. Raises the errors of the
    store, for example DamagedFileError.
    """
    manifest = checkpoint.manifest
    steps = candidates(manifest)
    largest = sorted(manifest.entries, key=lambda entry: -entry.size_bytes)
    links = _Links(manifest.checkpoint_id, largest)
    total = 3 + len(steps) + min(len(largest), _STATES) + (base is not None)
    done = 0

    def advance(section: Section, parts: int = 1) -> Section:
        nonlocal done
        done += parts
        progress(done, total)
        return section

    window = read_window(store)
    sections = [
        advance(_checkpoint(manifest, status_of(store, window), links)),
        _states(manifest, largest, links),
        _graph(manifest),
        advance(_over_time(window, links)),
        advance(_trends(store, links)),
        advance(_restores(store, checkpoint, steps), len(steps)),
    ]
    if base is not None:
        found = store.inspect.diff(base, checkpoint)
        sections.append(advance(_differences(found)))
    sections.append(advance(_details(manifest, largest), min(len(largest), _STATES)))
    return sections


def left_out_of(sections: Sequence[Section]) -> Iterator[str]:
    """Yield what is left out of the sections, as text."""
    for section in sections:
        yield from section.left_out
        if unfit := [part.name for part in section.parts if not part.is_shown]:
            yield f"{section.title}: {_names(unfit)} did not fit"


def _checkpoint(manifest: Manifest, status: Mapping[str, Any] | None, links: _Links) -> Section:
    title = f"Checkpoint {manifest.checkpoint_id}"
    facts = {"manifest": manifest, "status": status, "checkpoint_link": links.of_checkpoint}
    html = render_template("report/summary.html", facts)
    part = Part("facts", 0, "the facts of the checkpoint", html)
    lacking = tuple(f"state that the checkpoint lacks: {record}" for record in manifest.left_out)
    return Section("checkpoint", title, (part,), lacking)


class _Links:
    """The addresses of the sections for a checkpoint and its largest states; empty for others."""

    def __init__(self, checkpoint_id: int, largest: Sequence[Entry]) -> None:
        """Store the anchors of the states."""
        self.checkpoint_id = checkpoint_id
        self._anchors = {
            (entry.state.uid, entry.state.name): f"#{_anchor(number)}"
            for number, entry in enumerate(largest[:_STATES])
        }

    def of_checkpoint(self, number: int) -> str:
        """Return the address of a checkpoint's section."""
        return "#checkpoint" if number == self.checkpoint_id else ""

    def of_state(self, number: int, operator: str, state: str) -> str:
        """Return the address of a state's section."""
        return self._anchors.get((operator, state), "") if self.of_checkpoint(number) else ""


def _states(manifest: Manifest, largest: Sequence[Entry], links: _Links) -> Section:
    listed = largest[:_LISTED]
    facts = {
        "manifest": manifest,
        "has_columns": False,
        "states": [state_facts(entry) for entry in listed],
        "state_link": links.of_state,
    }
    html = render_template("state_table.html", facts)
    more = len(largest) - len(listed)
    left_out = (f"the {counted(more, 'smallest state')} in the table of states",) if more else ()
    part = Part("table-of-states", 1, "the table of states", html)
    return Section("all-states", "States", (part,), left_out)


def _trends(store: StateStore, links: _Links) -> Section:
    facts = trends(store, TrendQuery(last=SHOWN)).facts
    trend: StoreTrend = facts["trend"]
    known = trend.states
    table = {"listed": known[:_LISTED], "state_link": links.of_state}
    html = render_template("report/trends.html", {**facts, **table})
    more = len(known) - _LISTED
    left_out = [f"the growth of {counted(more, 'smaller state')}"] if more > 0 else []
    left_out += [
        f"checkpoint {unread.checkpoint_id} in the growth: {unread.message}"
        for unread in trend.unread
    ]
    part = Part("table-of-trends", 5, "the table of growth", html)
    return Section("trends", "Growth", (part,), tuple(left_out))


def _graph(manifest: Manifest) -> Section:
    graph = draw_graph(manifest)
    title = "Job graph" if graph.is_graph else "Operators"
    html = render_template("graph.html", {"graph": graph})
    return Section("job-graph", title, (Part("graph", 3, "the drawing of the operators", html),))


def _over_time(window: Window, links: _Links) -> Section:
    facts = {
        "total": len(window.ids),
        "lines": window.lines[::-1],
        "expired": window.expired,
        "pictures": [*draw_window(window)],
        "checkpoint_link": links.of_checkpoint,
    }
    html = render_template("report/over_time.html", facts)
    older = len(window.ids) - len(window.lines)
    left_out = [f"{counted(older, 'older checkpoint')} of {count(len(window.ids))}"]
    unread = [
        f"the figures of checkpoint {line.checkpoint_id}: {line.error}"
        for line in window.lines
        if line.error is not None
    ]
    part = Part("checkpoints-and-charts", 2, "their charts and table", html)
    left_out = (left_out if older else []) + unread
    return Section("over-time", "Newest checkpoints", (part,), tuple(left_out))


def _restores(store: StateStore, checkpoint: Checkpoint, steps: Sequence[int]) -> Section:
    manifest = checkpoint.manifest
    plans = {step: store.plan(checkpoint=checkpoint, parallelism=step) for step in steps}
    speed = PageSpeed.of(store, None, None)
    facts = {
        "comparison": compare_plans(manifest, plans, rate=speed.speed),
        "speed": speed,
    }
    parts = [
        Part("restores", 4, "the table of restores", render_template("report/restores.html", facts))
    ]
    left_out = []
    for rank, step in enumerate(sorted(steps, key=lambda step: abs(step - manifest.parallelism))):
        flows = [
            (one, draw_flow(one, f"Key groups at parallelism {step}") if one.bands else None)
            for one in flows_of(manifest, plans[step], _DRAWN)
        ]
        if step == manifest.parallelism or not flows:
            continue
        facts = {
            "old": manifest.parallelism,
            "new": step,
            "flows": [(one.key_groups, _names(one.uids), picture) for one, picture in flows],
        }
        left_out += [
            f"the picture of parallelism {step} for {_names(one.uids)}: too many subtasks to draw"
            for one, picture in flows
            if picture is None
        ]
        html = render_template("report/flow.html", facts)
        name = f"the picture of parallelism {step}"
        parts.append(Part(f"flow-{step}", 100 + rank, name, html))
    ordered = sorted(parts[1:], key=lambda part: int(part.anchor.removeprefix("flow-")))
    shown = (parts[0], *ordered)
    return Section("rescale", "Restores at other parallelisms", shown, tuple(left_out))


def _differences(found: CheckpointDifference) -> Section:
    differing = [one for one in found.states if one.differs]
    parts = [
        Part(
            "verdict",
            6,
            "the comparison",
            render_template("verdict.html", {"found": found, "groups": _GROUPS}),
        )
    ]
    for number, one in enumerate(differing[:_STATES], start=1):
        facts = {"number": number, "one": one, "groups": _GROUPS}
        html = render_template("difference.html", facts)
        name = _title(f"{one.operator}.{one.state}")
        parts.append(Part(f"difference-part-{number}", 6 + number, name, html))
    more = len(differing) - _STATES
    left_out = [f"key groups and examples of {counted(more, 'further differing state')}"]
    left_out = (left_out if more > 0 else []) + [*_uncompared(found, differing[:_STATES])]
    title = f"Differences from checkpoint {found.a.checkpoint_id}"
    return Section("compared", title, tuple(parts), tuple(left_out))


def _uncompared(found: CheckpointDifference, shown: Sequence[StateDifference]) -> Iterator[str]:
    """Yield the states that were not compared, and the states with more key groups than shown."""
    for one in found.states:
        if one.not_compared:
            name = _title(f"{one.operator}.{one.state}")
            yield f"the comparison of the rows of {name}: {one.not_compared}"
    for one in shown:
        more = len(one.key_groups) - _GROUPS
        if more > 0:
            name = _title(f"{one.operator}.{one.state}")
            yield f"{counted(more, 'further differing key group')} of {name}"


def _details(manifest: Manifest, largest: Sequence[Entry]) -> Section:
    parts = []
    for number, entry in enumerate(largest[:_STATES]):
        uid, name = entry.state.uid, entry.state.name
        facts = {
            "state": state_facts(entry),
            "left_out": [record for record in manifest.left_out if record.lacks(uid, name)],
            "pictures": [*draw_key_groups(entry, has_values=False)],
        }
        title = _title(f"{uid}.{name}")
        html = render_template("report/state.html", facts)
        parts.append(Part(_anchor(number), 50 + number, title, html, title))
    rest = [f"{entry.state.uid}.{entry.state.name}" for entry in largest[_STATES:]]
    left_out: tuple[str, ...] = ()
    if rest:
        left_out = (f"the details of {counted(len(rest), 'smaller state')}: {_names(rest)}",)
    return Section("details", "The largest states", tuple(parts), left_out)


def _anchor(number: int) -> str:
    return f"state-{number + 1}"


def _title(name: str) -> str:
    return name if len(name) <= _LONGEST_TITLE else name[: _LONGEST_TITLE - 1] + "…"


def _names(names: Sequence[str]) -> str:
    """Return the first names of a list as text."""
    shown = ", ".join(map(_title, names[:_NAMED]))
    more = len(names) - _NAMED
    return f"{shown} and {counted(more, 'other')}" if more > 0 else shown


with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup


PAGE: Final = b"<!doctype html>"  # how a report begins; no other file is replaced
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
    check_output_file(target, replace=PAGE)
    base = None if against is None else store.checkpoint(against)
    return _write(
        target, store.url, collect_sections(store, store.checkpoint(which), base, progress)
    )


def write_comparison(
    to: str, store: str, title: str, facts: Mapping[str, str], found: CheckpointDifference
) -> Report:
    """Write the differences between two checkpoints as a report with a title and facts.

    Raises InvalidArgumentError if the place of the file is invalid, and StorageError if it cannot
    be written.
    """
    pair = Markup("<dt>{}</dt><dd>{}</dd>")
    html = Markup("<dl>{}</dl>").format(Markup().join(pair.format(*fact) for fact in facts.items()))
    first = Section("facts", title, (Part("facts-part", 0, "the facts", html),))
    return _write(Path(to), store, [first, replace(_differences(found), title="Differences")])


def _write(target: Path, url: str, sections: Sequence[Section]) -> Report:
    text, left_out = _fit(url, sections)
    page = text.encode()
    with output_file(target, replace=PAGE) as file:
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
