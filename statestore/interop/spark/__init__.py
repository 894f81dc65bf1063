"""The checkpoints of Spark's own streaming queries."""
