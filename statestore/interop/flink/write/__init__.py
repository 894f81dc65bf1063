"""Write keyed state in Flink's canonical format, and repack a savepoint."""
