"""Savepoints and checkpoints of Flink jobs, read without a JVM.

``savepoint`` opens them; what the other modules do is pure, over bytes.
"""
