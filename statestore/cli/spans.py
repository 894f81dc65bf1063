"""Spans of time on the command line: ``90s``, ``15min``, ``2h``, ``7d``."""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = ["SPAN", "span_seconds"]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_SECONDS)})")


def span_seconds(text: str) -> float:
    """Return a span in seconds; ValueError names the forms that there are."""
    if text == "0":
        return 0
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no span of time; write 90s, 15min, 2h, 7d or 0")
    return float(match[1]) * _SECONDS[match[2]]


class _Span(click.ParamType):  # type: ignore[type-arg]
    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, int | float) else span_seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SPAN = _Span()
"""The type of an option that takes a span; its value is in seconds."""
