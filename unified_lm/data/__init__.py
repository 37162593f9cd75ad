"""Streams of pairs, dialogues, triples and plain text, from files, the hub and installed packages."""
