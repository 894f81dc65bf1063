"""Render a view as HTML with a template, and format numbers, sizes and times.

The templates escape every value, except the pictures of ``charts.py``.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote, urlencode

from statestore._version import __version__
from statestore.cli.drawing import count, counted, duration, signed, size, when
from statestore.cli.output import value_text
from statestore.cli.summaries import made_by, rows_explanation, rows_text, written_by
from statestore.errors import StateStoreError
from statestore.extras import needs_extra

with needs_extra("ui", "the pages of a store"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

SCRIPTS: Final = ("ui.js",)
"""The scripts of a page."""

STYLES: Final = ("vendor/pico.min.css", "charts.css", "ui.css")
"""The style sheets of a page; later ones override earlier ones."""


_CELL_BYTES: Final = 40  # of the HTML of a cell, without its value
_ROWS_BYTES: Final = 150_000  # with its script and style sheets, a page has at most 300 kB

_FIELDS: Final = {
    "last": "newest checkpoints",
    "size_bytes": "when a state reaches",
    "restore_time": "when a restore takes",
    "rate": "MB/s of a subtask",
    "parallelism": "parallelism",
    "request_ms": "ms per request",
    "ms": "ms per request",
}
"""The label of each field that an error can name, by the argument that gets its value."""


def word_field(argument: str, value: int | None) -> str | None:
    """Return the label of the field of an argument; None if no page has such a field."""
    label = _FIELDS.get(argument)
    return label if label is None or value is None else f"{label} {value}"


@dataclass(frozen=True)
class PageView:
    """The content of a page: its title, its template, and the data for it.

    ``tab`` is the page's entry in the menu, ``checkpoint`` the checkpoint that it shows. ``error``
    is the error that the page shows next to its form, and decides the HTTP status.
    """

    title: str
    template: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tab: str = ""
    checkpoint: int | None = None
    error: StateStoreError | None = None


def fit(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return as many of the first rows of a table as fit on a page, and at least one."""
    bytes_of_rows = accumulate(
        sum(_CELL_BYTES + len(escape(value_text(value)).encode()) for value in row) for row in rows
    )
    return rows[: max(1, sum(total <= _ROWS_BYTES for total in bytes_of_rows))]


def render(view: PageView, store: str, *, layout: str = "page.html") -> str:
    """Return the HTML of a view, as a page or, with ``part.html``, as the main part of one."""
    return render_template(
        view.template,
        {
            "view": view,
            "store": store,
            "layout": layout,
            "checkpoint_link": lambda number: f"/checkpoint/{number}",
            "state_link": lambda number, operator, state: (
                f"/checkpoint/{number}/state?{_query(operator=operator, state=state)}"
            ),
            **view.facts,
        },
    )


def render_template(name: str, facts: Mapping[str, Any]) -> Markup:
    """Return the HTML of a template."""
    return Markup(_environment().get_template(name).render(facts))


@lru_cache(maxsize=len(SCRIPTS) + len(STYLES))
def static(name: str) -> str:
    """Return the content of a style sheet or a script."""
    return (files("statestore.ui") / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=len(SCRIPTS) + len(STYLES))
def digest_of(name: str) -> str:
    """Return the start of the SHA-256 of a style sheet or a script, for its URL."""
    return hashlib.sha256(static(name).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("statestore.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count,
        "counted": counted,
        "size": size,
        "signed_count": lambda number: signed(number, count),
        "signed_size": lambda number: signed(number, size),
        "span": duration,
        "time": _time,
        "iso": _iso,
        "identifier": _identifier,
        "repr": repr,
        "shell": lambda value: shlex.quote(str(value)),
        "made_by": made_by,
        "rows_explanation": rows_explanation,
        "rows_text": rows_text,
        "value": value_text,
        "written_by": written_by,
        "segment": lambda text: quote(str(text), safe=""),
    }
    environment.globals |= {
        "query": _query,
        "scripts": [_address(name) for name in SCRIPTS],
        "styles": [_address(name) for name in STYLES],
        "release": __version__,
    }
    return environment


def _address(name: str) -> str:
    """Return the URL of a static file; it changes with the file, so browsers can cache it."""
    return f"/static/{name}?v={digest_of(name)}"


def _time(milliseconds: int) -> Markup:
    """Return a time in UTC."""
    stamp, text = _iso(milliseconds), when(milliseconds)
    return Markup('<time datetime="{}">{}</time>').format(stamp, text)


def _iso(milliseconds: int) -> str:
    return when(milliseconds).removesuffix(" UTC").replace(" ", "T") + "Z"


def _identifier(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _query(**parameters: Any) -> str:
    return urlencode(parameters)
