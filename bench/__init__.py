"""Benchmarks: figures, each with a floor that is measured in the same run."""
