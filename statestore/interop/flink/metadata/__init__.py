"""The file ``_metadata`` of a savepoint: handles, serializer snapshots, Java's encodings."""
