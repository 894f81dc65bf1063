"""Benchmarks: figures with the floor they are measured against, in the same run."""
