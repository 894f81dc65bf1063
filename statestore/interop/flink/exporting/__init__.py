"""Export a checkpoint of a store as a savepoint, and verify it; repack a savepoint."""
