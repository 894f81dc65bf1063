"""The main demo: a stateful job is stopped half-way, rescaled from 4 to 7, and proved unharmed."""

from statestore.demo.run import run

__all__ = ["run"]
