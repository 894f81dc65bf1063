"""Columns of a store and the values of Flink that they hold, in both directions."""
