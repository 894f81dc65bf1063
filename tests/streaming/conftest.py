"""Fixtures for the tests of streaming queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streaming.world import World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    """A world without events."""
    return World(spark, tmp_path)
