"""Read the state of a savepoint: the formats of all state backends, down to files and blocks."""
