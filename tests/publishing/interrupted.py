"""A real catalog whose commits are interrupted, as by the end of the process or by a rival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableResponse


class Killed(BaseException):
    """The process ends here."""


class InterruptedCatalog(SqlCatalog):
    """A catalog that calls functions before and after each commit of a table."""

    before: Callable[[], None] = staticmethod(lambda: None)
    after: Callable[[], None] = staticmethod(lambda: None)

    def commit_table(self, *args: Any, **kwargs: Any) -> CommitTableResponse:
        """Commit between the two functions."""
        self.before()
        done = super().commit_table(*args, **kwargs)
        self.after()
        return done


def interrupted_client(catalog: Catalog) -> InterruptedCatalog:
    """Return a second client of a catalog in SQLite."""
    options = {str(name): str(value) for name, value in catalog.properties.items()}
    return InterruptedCatalog(catalog.name, **options)


def stop(error: BaseException) -> Callable[[], None]:
    """Return a function that raises an error."""

    def raise_error() -> None:
        raise error

    return raise_error
