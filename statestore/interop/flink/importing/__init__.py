"""Import a savepoint as a checkpoint of a store."""
