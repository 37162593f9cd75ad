"""Suites that score embeddings through mteb."""
