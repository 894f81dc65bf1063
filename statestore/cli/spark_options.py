"""Options that several verbs of ``statestore spark`` share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from statestore.cli.arguments import distinct

if TYPE_CHECKING:
    from statestore.interop.spark.spark_target import SparkTarget

__all__ = ["OPERATOR_NAMES", "location_module", "shape_options", "spark_target"]

F = TypeVar("F", bound=Callable[..., Any])


def location_module(name: str) -> Any:
    """Import a module that needs Spark."""
    return importlib.import_module(f"statestore.interop.spark.{name}")


def shape_options(function: F) -> F:
    """Add ``--shuffle-partitions`` and ``--provider``, the settings of a new location."""
    partitions = click.option(
        "--shuffle-partitions",
        "partitions",
        type=int,
        required=True,
        metavar="N",
        help="The new number of shuffle partitions of the query.",
    )
    provider = click.option(
        "--provider", type=click.Choice(("hdfs", "rocksdb")), help="The provider. [as in the query]"
    )
    sources = click.option(
        "--source",
        "sources",
        multiple=True,
        callback=_parse_sources,
        metavar="OLD=NEW",
        help="Rename a source, by name or number; OLD= removes, =NEW adds. Repeatable.",
    )
    return partitions(provider(sources(function)))


def _parse_sources(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return the changes of sources, from ``OLD=NEW``, ``OLD=`` and ``=NEW``."""
    renamed: dict[str, str | None] = {}
    added = []
    for value in values:
        old, separator, new = value.partition("=")
        if not separator or not (old or new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW, OLD= or =NEW")
        if old in renamed:
            raise click.BadParameter(f"source {old!r} is changed twice")
        if old:
            renamed[old] = new or None
        else:
            added.append(new)
    return {"renamed_sources": renamed, "added_sources": tuple(added)}


def spark_target(provider: str | None, sources: Mapping[str, Any]) -> SparkTarget:
    """Return the query that continues, from the options of :func:`shape_options`."""
    target: SparkTarget = location_module("spark_target").SparkTarget(provider=provider, **sources)
    return target


def _parse_names(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Mapping[int, str]:
    """Return the names of operators by number, from ``NUMBER=NAME``."""
    names = []
    for value in values:
        number, separator, name = value.partition("=")
        if not separator or not number.isdecimal():
            raise click.BadParameter(f"{value!r} is not NUMBER=NAME, such as 0=dedupe")
        names.append((int(number), name))
    return distinct("--operator-name", names)


OPERATOR_NAMES = click.option(
    "--operator-name",
    "operator_names",
    multiple=True,
    metavar="NUMBER=NAME",
    callback=_parse_names,
    help="What an operator of Spark 3 is, if its columns do not tell it. Repeatable.",
)
