"""Write the golden savepoint of real PyFlink, and the content of its states, into
tests/golden/pyflink.

    python -m tests.golden.make_pyflink

tests/servers/pyflink.py describes its requirements.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.pyflink import run_pyflink

TARGET = Path(__file__).parent / "pyflink"


def main() -> None:
    """Write both files."""
    TARGET.mkdir(exist_ok=True)
    with TemporaryDirectory() as place:
        savepoint, rows = Path(place, "savepoint"), Path(place, "rows.jsonl")
        run_pyflink("write", savepoint, rows)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(savepoint, "savepoint")
        TARGET.joinpath("savepoint.tar.xz").write_bytes(lzma.compress(packed.getvalue(), preset=9))
        TARGET.joinpath("rows.jsonl.xz").write_bytes(lzma.compress(rows.read_bytes(), preset=9))


if __name__ == "__main__":
    main()
