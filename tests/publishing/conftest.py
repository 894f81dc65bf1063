"""A store, and real catalogs of Iceberg: one in SQLite, and the server of Iceberg's own tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.servers.iceberg_rest import IcebergRest, iceberg_rest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    """A server of the REST protocol."""
    with iceberg_rest(tmp_path_factory.mktemp("iceberg")) as server:
        yield server


@pytest.fixture(
    params=["sql", pytest.param("rest", marks=[pytest.mark.services, pytest.mark.slow])]
)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog without the namespace ``db``."""
    if request.param == "sql":
        return sql_catalog(tmp_path)
    server: IcebergRest = request.getfixturevalue("rest_server")
    found = load_catalog("lake", **server.options)
    for namespace in found.list_namespaces():
        for table in found.list_tables(namespace):
            found.drop_table(table)
        found.drop_namespace(namespace)
    return found


@pytest.fixture
def sql(tmp_path: Path) -> Catalog:
    """A catalog in SQLite."""
    return sql_catalog(tmp_path)


def sql_catalog(folder: Path) -> Catalog:
    options = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return load_catalog("lake", type="sql", **options)
