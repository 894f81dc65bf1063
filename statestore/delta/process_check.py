"""Checks that this process can use delta-rs: it must not be a forked child of a user of delta-rs.

delta-rs runs its work on threads that a forked child does not inherit. It notices this, and ends
each call in a Rust panic, which ``except Exception`` does not catch. A forked child is therefore
detected before it changes anything.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from statestore.errors import InvalidArgumentError

__all__ = ["refuse_forked"]

_IMPORTED_IN: Final = os.getpid()
_PANIC: Final = "PanicException"


def refuse_forked(url: str) -> None:
    """Refuse a Delta table in a process that was forked after its parent had used delta-rs.

    Args:
        url: the store or table, for the message.

    Raises:
        InvalidArgumentError: if delta-rs does not run in this process.
    """
    process = os.getpid()
    if process != _IMPORTED_IN and not _runs(process):
        raise InvalidArgumentError(
            f"process {process} cannot use the Delta tables of {url}: it was forked from a "
            "process that had already used Delta, and a forked process does not have Delta's "
            "threads. Nothing was claimed or written. Start processes with 'spawn' "
            "(multiprocessing.get_context('spawn')), or open the store with "
            "table_format='parquet'"
        )


@cache
def _runs(process: int) -> bool:
    """Return whether delta-rs works here, by calling it: it does not report its started threads.

    The answer is cached only for ``process``, because its children may differ.
    """
    with tempfile.TemporaryDirectory(prefix="statestore-") as folder:
        try:
            DeltaTable(folder)
        except TableNotFoundError:
            return True
        except BaseException as error:
            if type(error).__name__ == _PANIC:  # the exception's class cannot be imported
                return False
            raise
    return True
