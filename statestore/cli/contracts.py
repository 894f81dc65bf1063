"""Find out what the old state and the new job of a comparison are, and read their contracts.

State is a store, a Spark checkpoint location, or a Flink savepoint or checkpoint, which their files
tell. A job is a function of the user's code, or a compiled plan of Flink SQL.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
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

__all__ = ["contract_of_job", "contract_of_state"]

_FUNCTION = re.compile(r"(?:.*\.py|[\w.]+):[A-Za-z_]\w*")
_IMPORTS = {"flink": ("flink", "savepoint"), "spark": ("query", "stores")}
"""A state that only the checkpoint of an import from an engine has."""


def contract_of_state(
    invocation: Invocation, place: str, checkpoint: str, *, engine: str = "store"
) -> JobContract:
    """Return the contract of the state in a place.

    Args:
        invocation: The settings, with the credentials for the place.
        place: The path or URL of a store, a checkpoint location, or a savepoint.
        checkpoint: The checkpoint of a store, or the micro-batch of a location.
        engine: The engine of the new job. A store that was imported from this engine has the
            contract of the imported job.

    Raises:
        InvalidArgumentError: If the place has other files.
        StateStoreError: If it cannot be read.
    """
    options, streams = invocation.settings.storage_options, invocation.settings.parallel_streams
    storage = open_storage(place, options, streams)
    if _has(storage, STORE_FILE):
        store = StateStore.open(place, storage_options=options, parallel_streams=streams)
        found = store.checkpoint(checkpoint)
        names = [(entry.state.uid, entry.state.name) for entry in found.manifest.operator]
        if _IMPORTS.get(engine) in names:
            restored = store.restore(checkpoint=found)
            return _contract(f"{engine}_side", "contract_of_import", restored)
        return contract_of_checkpoint(found.manifest)
    if _has(storage, "metadata"):
        batch = int(checkpoint) if checkpoint.isdecimal() else None
        location = location_module("location").CheckpointLocation(storage)
        return _contract("spark_side", "contract_of_location", location, batch)
    if place.rstrip("/").endswith("_metadata") or _has(storage, "_metadata"):
        options_module: Any = importlib.import_module("statestore.interop.flink.options")
        access = options_module.SavepointAccess(storage_options=options)
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


def contract_of_job(
    invocation: Invocation,
    job: str,
    old: Callable[[str], JobContract],
    output_mode: str,
    settings: Mapping[str, str],
) -> tuple[JobContract, JobContract]:
    """Return the contracts of the state and of the new job.

    Args:
        invocation: The settings, with the credentials for a place.
        job: A function of the user's code or the class of a ``StatefulProcessor``, as
            ``job.py:build``; a compiled plan; or a place with the state of the new version.
        old: Returns the contract of the state for the engine of the job.
        output_mode: The output mode of a Spark query.
        settings: The settings of Spark.

    Raises:
        InvalidArgumentError: If the job does not load, or makes something else.
        StateStoreError: If a place cannot be read.
    """
    if job.endswith(".json"):
        options: dict[str, Any] = {"storage_options": invocation.settings.storage_options}
        if invocation.settings.flink_uid_format is not None:
            options["uid_format"] = invocation.settings.flink_uid_format
        return old("flink"), _contract("flink_side", "contract_of_plan", job, **options)
    if not _FUNCTION.fullmatch(job):
        new = contract_of_state(invocation, job, "latest")
        return old(new.engine), new
    function, before = click.get_current_context().with_resource(job_function(job)), old("store")
    if inspect.isclass(function):
        processor = call_job(lambda _: function(), None, job)
        return before, _contract("streaming_side", "contract_of_processor", processor, before)
    if "checkpoint" in inspect.signature(function).parameters:
        return before, contract_of_declared(function, job)
    try:
        built = call_job(function, open_session(".", settings), job)
        if not hasattr(built, "isStreaming"):
            return before, _contract("streaming_side", "contract_of_stateful_query", built, job)
    except InvalidArgumentError as error:
        error.add_note(
            "it got a SparkSession, because none of its parameters is named 'checkpoint'; if it "
            "declares states, rename its parameter"
        )
        raise
    before = old("spark") if before.engine == "store" else before
    query = _contract("spark_side", "contract_of_query", built, output_mode, before, settings)
    return before, query


def _contract(module: str, function: str, *arguments: Any, **options: Any) -> JobContract:
    """Call a function of a module that is only loaded when it is needed."""
    with needs_extra("spark", "the contract of a query"):
        loaded = importlib.import_module(f"statestore.contract.{module}")
    contract: JobContract = getattr(loaded, function)(*arguments, **options)
    return contract
