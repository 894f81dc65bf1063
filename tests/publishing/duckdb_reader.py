"""Read Iceberg tables with DuckDB's own extension, in an environment that has it.

``python duckdb_reader.py SQL`` prints the rows of a query as one JSON document. The packages with
DuckDB's extensions can need another version of DuckDB than the tests' environment has. So this
script imports nothing else.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import duckdb


def main(sql: str) -> None:
    """Print the rows of a query."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg"):
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None, f"the package duckdb-extension-{name} is not installed"
        assert spec.origin is not None
        [file] = Path(spec.origin).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET TimeZone = 'UTC'")
    rows = connection.execute(sql).fetchall()
    print(json.dumps(rows, default=repr))


if __name__ == "__main__":
    main(sys.argv[1])
