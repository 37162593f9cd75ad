"""Texts known by their content. Imports no torch, so that composing a configuration stays fast."""

import hashlib


def text_hash(text: str) -> int:
    """64 bits of the text's content: equal texts are equal documents, on every rank and in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
