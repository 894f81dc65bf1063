"""Options that several verbs of ``statestore spark`` share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from statestore.cli.arguments import distinct
from statestore.cli.options import in_order

if TYPE_CHECKING:
    from statestore.interop.spark.query_settings import SparkTarget

__all__ = [
    "OPERATOR_NAMES",
    "batch_option",
    "location_module",
    "provider_option",
    "shape_options",
    "shuffle_partitions_option",
    "spark_target",
]

F = TypeVar("F", bound=Callable[..., Any])


def location_module(name: str) -> Any:
    """Import a module that needs Spark."""
    return importlib.import_module(f"statestore.interop.spark.{name}")


def shuffle_partitions_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return ``--shuffle-partitions``, the number of shuffle partitions of a query."""
    return click.option(
        "--shuffle-partitions",
        "partitions",
        type=int,
        required=required,
        metavar="N",
        help=text,
    )


def provider_option(text: str) -> Callable[[F], F]:
    """Return ``--provider``, the state store provider of a query."""
    return click.option("--provider", type=click.Choice(("hdfs", "rocksdb")), help=text)


batch_option = click.option(
    "--batch", type=int, metavar="N", help="A completed micro-batch. [newest]"
)


def shape_options(function: F) -> F:
    """Add the settings of a new location: its partitions, its provider, and its sources."""
    sources = click.option(
        "--rename-source",
        "sources",
        multiple=True,
        callback=_parse_sources,
        metavar="OLD=NEW",
        help="Rename a source, by name or number; OLD= removes, =NEW adds. Repeatable.",
    )
    return in_order(
        shuffle_partitions_option(
            "The new number of shuffle partitions of the query.", required=True
        ),
        provider_option("The provider. [as in the query]"),
        sources,
    )(function)


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
    target: SparkTarget = location_module("query_settings").SparkTarget(
        provider=provider, **sources
    )
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
