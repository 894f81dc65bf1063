"""Flink's types: their values as Arrow columns, and the bytes of these values."""
