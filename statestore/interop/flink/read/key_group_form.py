"""Whether keyed state in key groups has the canonical form, or the native form of the heap.

The kind of the handle does not tell it: savepoints of RocksDB up to Flink 1.12, and its
non-incremental checkpoints up to Flink 1.15, have the canonical form under a plain
``KeyGroupsStateHandle``. In the native form each key group begins with its own number, and none has
the offset 0. In the canonical form an empty key group has the offset 0, and the others begin with
the number of a state and the length of a key.
"""

from __future__ import annotations

from itertools import islice

from statestore.interop.flink.metadata.handles import KeyGroupsHandle
from statestore.interop.flink.read.savepoint_files import ByteSource

_NUMBER_BYTES = 4
_TRIED = 3  # a key of 64 KiB can look like the number of one key group, but not of three


def find_form(handle: KeyGroupsHandle, source: ByteSource) -> bool | None:
    """Return whether a subtask's keyed state is canonical; None if its bytes do not tell.

    They do not tell it if key group 0 is the only one, because both forms begin with zeros.

    Args:
        handle: the handle of the keyed state.
        source: its bytes.

    Raises:
        DamagedFileError: if a key group begins after the end of the bytes.
    """
    if handle.is_savepoint or 0 in handle.offsets:
        return True
    numbered = ((group, at) for group, at in enumerate(handle.offsets, handle.first) if group > 0)
    matches = [
        int.from_bytes(source.read(at, min(at + _NUMBER_BYTES, source.size)), "big") == group
        for group, at in islice(numbered, _TRIED)
    ]
    return not any(matches) if matches else None
