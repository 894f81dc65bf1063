"""HTML of a view: a template and its facts; and how numbers, bytes and times are written.

Every value is escaped by the templates, unless it is a picture of ``charts.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from statestore._version import __version__
from statestore.cli.drawing import count, counted, duration, size, when
from statestore.cli.output import value_text
from statestore.extras import needs_extra

with needs_extra("ui", "the pages of a store"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

__all__ = ["View", "static", "written"]


@dataclass(frozen=True)
class View:
    """What a page shows: its title, the template, and the facts for it.

    ``tab`` is the entry of the menu that it belongs to, ``checkpoint`` the one that it is about.
    """

    title: str
    template: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tab: str = ""
    checkpoint: int | None = None


def written(view: View, store: str, *, layout: str = "page.html") -> str:
    """Return the HTML of a view, in a layout: ``page.html``, or ``part.html`` for its main part."""
    template = _environment().get_template(view.template)
    return template.render(view=view, store=store, layout=layout, release=__version__, **view.facts)


def static(name: str) -> str:
    """Return the text of the style or the script."""
    return (files("statestore.ui") / "static" / name).read_text(encoding="utf-8")


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
        "span": duration,
        "time": _time,
        "value": value_text,
        "segment": lambda text: quote(str(text), safe=""),
    }
    environment.globals["query"] = _query
    return environment


def _time(milliseconds: int) -> Markup:
    """Return a moment in UTC, which the page's script writes in the zone of the reader."""
    text = when(milliseconds)
    stamp = text.removesuffix(" UTC").replace(" ", "T") + "Z"
    return Markup('<time datetime="{}">{}</time>').format(stamp, text)


def _query(**given: Any) -> str:
    return urlencode(given)
