"""Find out what the old state and the new job of a comparison are, and read their contracts.

State is a store, a Spark checkpoint location, or a Flink savepoint or checkpoint, which their files
tell. A job is a function of the user's code, or a compiled plan of Flink SQL.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import click

from statestore.cli.command import Invocation
from statestore.cli.job_function import call_job, job_function
from statestore.cli.options import location_module
from statestore.cli.verbs.spark import open_session
from statestore.contract.model import JobContract
from statestore.contract.store_side import contract_of_checkpoint, contract_of_declared
from statestore.errors import InvalidArgumentError
from statestore.extras import needs_extra
from statestore.format.names import STORE_FILE
from statestore.storage import Storage, open_storage
from statestore.store import StateStore

__all__ = ["contract_of_function", "contract_of_place", "contract_of_state"]

_FUNCTION = re.compile(r"(?:.*\.py|[\w.]+):[A-Za-z_]\w*")


def contract_of_state(
    invocation: Invocation, place: str, checkpoint: str, *, engine: str = "store"
) -> JobContract:
    """Return the contract of the state in a place.

    Args:
        invocation: The settings, with the credentials for the place.
        place: The path or URL of a store, a checkpoint location, or a savepoint.
        checkpoint: The checkpoint of a store, or the micro-batch of a location.
        engine: The engine of the new job. For ``flink``, a store has the state of a savepoint that
            was imported.

    Raises:
        InvalidArgumentError: If the place has other files.
        StateStoreError: If it cannot be read.
    """
    options, streams = invocation.settings.storage_options, invocation.settings.parallel_streams
    storage = open_storage(place, options, streams)
    if _has(storage, STORE_FILE):
        store = StateStore.open(place, storage_options=options, parallel_streams=streams)
        if engine == "flink":
            record = _flink("importing.import_record").SavepointRecord
            restored = store.restore(checkpoint=checkpoint)
            return _contract("flink_side", "contract_of_import", record.of(restored))
        return contract_of_checkpoint(store.checkpoint(checkpoint).manifest)
    if _has(storage, "metadata"):
        batch = int(checkpoint) if checkpoint.isdecimal() else None
        location = location_module("location").CheckpointLocation(storage)
        return _contract("spark_side", "contract_of_location", location, batch)
    if place.rstrip("/").endswith("_metadata") or _has(storage, "_metadata"):
        access = _flink("options").SavepointAccess(storage_options=options)
        return _contract("flink_side", "contract_of_savepoint", place, access=access)
    raise InvalidArgumentError(
        f"{storage.url} has no state: it has no {STORE_FILE} (a store), no metadata (a Spark "
        "checkpoint location), and no _metadata (a Flink savepoint or checkpoint). Check the path"
    )


def _has(storage: Storage, name: str) -> bool:
    try:
        storage.size(name)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def contract_of_place(invocation: Invocation, job: str) -> JobContract | None:
    """Return the contract of a new job that needs no code: a compiled plan, or a place with state.

    None if ``job`` names a function (``job.py:build``).
    """
    if job.endswith(".json"):
        settings = invocation.settings
        options: dict[str, Any] = {"storage_options": settings.storage_options}
        if settings.flink_uid_format is not None:
            options["uid_format"] = settings.flink_uid_format
        return _contract("flink_side", "contract_of_plan", job, **options)
    return None if _FUNCTION.fullmatch(job) else contract_of_state(invocation, job, "latest")


def contract_of_function(
    job: str, old: JobContract, output_mode: str, settings: Mapping[str, str]
) -> JobContract:
    """Return the contract of the job that a function of the user's code makes.

    Args:
        job: The function, or the class of a ``StatefulProcessor``, as ``job.py:build``.
        old: The contract of the state.
        output_mode: The output mode of a Spark query.
        settings: The settings of Spark.

    Raises:
        InvalidArgumentError: If the job does not load, or makes something else.
    """
    function = click.get_current_context().with_resource(job_function(job))
    if inspect.isclass(function):
        processor = call_job(lambda _: function(), None, job)
        return _contract("streaming_side", "contract_of_processor", processor, old)
    if "checkpoint" in inspect.signature(function).parameters:
        return contract_of_declared(function, job)
    try:
        built = call_job(function, open_session(".", settings), job)
    except InvalidArgumentError as error:
        error.add_note("it got a SparkSession; one that declares states takes 'checkpoint'")
        raise
    if hasattr(built, "isStreaming"):
        return _contract("spark_side", "contract_of_query", built, output_mode, old, settings)
    return _contract("streaming_side", "contract_of_built", built, job)


def _flink(module: str) -> Any:
    return importlib.import_module(f"statestore.interop.flink.{module}")


def _contract(module: str, function: str, *arguments: Any, **options: Any) -> JobContract:
    """Call a function of a module that is only loaded when it is needed."""
    with needs_extra("spark", "the contract of a query"):
        loaded = importlib.import_module(f"statestore.contract.{module}")
    contract: JobContract = getattr(loaded, function)(*arguments, **options)
    return contract
