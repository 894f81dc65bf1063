"""Write keyed state in Flink's canonical format."""
