"""What the tests of streaming queries share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streaming.world import World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    """Nothing yet."""
    return World(spark, tmp_path)
