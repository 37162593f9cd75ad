"""Scorers: suites of tasks that turn a subject (embedder, generator or search model) into scores with provenance."""
