"""Render a view as HTML with a template, and format numbers, sizes and times.

The templates escape every value, except the pictures of ``charts.py``.
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

__all__ = ["PageView", "render", "static"]


@dataclass(frozen=True)
class PageView:
    """The content of a page: its title, its template, and the data for it.

    ``tab`` is the page's entry in the menu, ``checkpoint`` the checkpoint that it shows.
    """

    title: str
    template: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tab: str = ""
    checkpoint: int | None = None


def render(view: PageView, store: str, *, layout: str = "page.html") -> str:
    """Return the HTML of a view, as a page or, with ``part.html``, as the main part of one."""
    template = _environment().get_template(view.template)
    return template.render(view=view, store=store, layout=layout, release=__version__, **view.facts)


def static(name: str) -> str:
    """Return the content of the style sheet or the script."""
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
    """Return a time in UTC; the page's script converts it to the reader's time zone."""
    text = when(milliseconds)
    stamp = text.removesuffix(" UTC").replace(" ", "T") + "Z"
    return Markup('<time datetime="{}">{}</time>').format(stamp, text)


def _query(**parameters: Any) -> str:
    return urlencode(parameters)
