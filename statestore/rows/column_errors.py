"""Collects the errors of a table's columns, so that one error names all columns that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from statestore.errors import InvalidArgumentError, UnsupportedTypeError

__all__ = ["ColumnErrors"]


class ColumnErrors:
    """The errors of columns so far; ``subject`` names the rows in messages."""

    def __init__(self, subject: str) -> None:
        """Start without errors."""
        self._subject = subject
        self._errors: list[InvalidArgumentError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the InvalidArgumentError of one column."""
        try:
            yield
        except InvalidArgumentError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raise the error of the only column, or one error that names all columns, in order."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = [f"{len(self._errors)} columns of {self._subject} do not fit:", *self._errors]
            are_types = all(isinstance(error, UnsupportedTypeError) for error in self._errors)
            kind = UnsupportedTypeError if are_types else InvalidArgumentError
            raise kind("\n  ".join(map(str, lines)))
