"""``spark.read.format("keyed_state")``: a restore whose arguments are given as options.

``store``, ``operator`` and ``state`` are required. Optional are ``parallelism`` (default: as
stored), ``checkpoint`` (``latest``), ``verify`` (``false``) and ``now_ms`` (this machine's clock);
see :meth:`StateStore.restore`. Credentials come from the environment of the driver and the
executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from statestore.catalog.catalog import Catalog
from statestore.engines.spark_modules import spark_module
from statestore.errors import InvalidArgumentError
from statestore.format.slices import KeyedPlan
from statestore.format.state import clock_ms
from statestore.parsing import parse_integer
from statestore.restore.plan import owners_of
from statestore.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statestore.spark.state_reader import Read

N = TypeVar("N", int, None)

REQUIRED = ("store", "operator", "state")
OPTIONAL = ("parallelism", "checkpoint", "verify", "now_ms")


def register(spark: SparkSession) -> None:
    """Register the format ``keyed_state`` with a session."""
    spark_module("state_reader").register(spark, resolve)


def resolve(options: Mapping[str, str]) -> Read:
    """Return the read that the options describe.

    Raises InvalidArgumentError for a missing or unknown option, and the errors of a restore.
    """
    parameters = {name.lower(): value for name, value in options.items()}
    for name in parameters:
        if name not in (*REQUIRED, *OPTIONAL):
            close = get_close_matches(name, (*REQUIRED, *OPTIONAL), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidArgumentError(f"keyed_state has no option {name!r}{hint}")
    missing = [name for name in REQUIRED if name not in parameters]
    if missing:
        raise InvalidArgumentError(
            f"keyed_state requires the option {missing[0]!r}: "
            "spark.read.format('keyed_state').option('store', …).option('operator', "
            "…).option('state', …).load()"
        )
    storage = open_storage(parameters["store"], of_store=True)
    catalog = Catalog.open(storage, create=False)
    manifest = catalog.checkpoint(parameters.get("checkpoint", "latest")).manifest
    entry = manifest.keyed_entry(parameters["operator"], parameters["state"])
    owners = owners_of(manifest, parameters["operator"], _number(parameters, "parallelism", None))
    per_subtask = KeyedPlan(entry, owners).of_all()
    now_ms = clock_ms(_number(parameters, "now_ms", None))
    read: Read = spark_module("state_reader").Read(
        storage, entry, per_subtask, _verify(parameters), now_ms
    )
    return read


def _number(parameters: Mapping[str, str], name: str, otherwise: N) -> int | N:
    if name not in parameters:
        return otherwise
    try:
        return parse_integer(parameters[name])
    except ValueError:
        raise InvalidArgumentError(
            f"{name} must be a number, not {parameters[name]!r:.80}"
        ) from None


def _verify(parameters: Mapping[str, str]) -> bool:
    text = parameters.get("verify", "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(f"verify must be true or false, not {text!r}")
    return text == "true"
