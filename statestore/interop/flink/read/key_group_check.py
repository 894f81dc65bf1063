"""Check that keys of a savepoint are stored in the key groups that Flink's hash gives.

The hash function follows from the key's type, or from the state's recipe. Enums and user-defined
classes have a ``hashCode`` that a savepoint does not contain. Their keys are not checked without a
recipe.
"""

from __future__ import annotations

import numpy as np

from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.read.keyed_states import KeyedStateInfo
from statestore.interop.flink.types.byte_cursor import Cursor


def check_key_groups(
    state: KeyedStateInfo, cursor: Cursor, key_group: int, max_parallelism: int, where: str
) -> None:
    """Check that each key at a cursor belongs to the key group in which it is stored.

    The files have no checksums, so this check detects damaged keys. It is skipped for types whose
    hash cannot be computed from a savepoint. ``where`` is the state's name in messages. Raises
    DamagedFileError if a key belongs to another key group.
    """
    try:
        computed = state.key_groups(cursor)(max_parallelism)
    except UnsupportedTypeError:
        return
    except InvalidArgumentError as error:
        raise DamagedFileError(
            f"{where} has a key in key group {key_group} that cannot be a key: {error}"
        ) from error
    wrong = np.flatnonzero(computed != key_group)
    if len(wrong):
        raise DamagedFileError(
            f"{where} has {len(wrong)} of {len(computed)} keys in key group {key_group} that "
            "belong elsewhere according to Flink's hash, the first in key group "
            f"{computed[wrong[0]]}; the savepoint is damaged, or the job uses another hash"
        )
