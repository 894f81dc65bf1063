"""The file ``_metadata`` of a savepoint: handles, logical types, Java's encodings."""
