"""A table as a pure function of a definition and of records."""
