"""Import and export the state of other systems, in their own formats."""
