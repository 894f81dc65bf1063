"""States of other systems: what they keep, read and written as they do."""
