"""Attention modes of a model for embedding and for generation."""

from __future__ import annotations

from dataclasses import dataclass

from unified_lm.attention.layout import ALL_MODES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The attention modes of one model's two uses.

    `embed`: for sequences that are pooled to vectors ("bottleneck": causal, with slots that do not see each other).
    `generate`: for sequences whose answer is predicted; "prefix" is bidirectional over the prompt and causal over the
    answer. Methods with a next-token loss refuse a bidirectional `generate`: every token would see its own target.
    """

    embed: str
    generate: str

    def __post_init__(self) -> None:
        for use, mode in (("embed", self.embed), ("generate", self.generate)):
            if mode not in ALL_MODES:
                raise ValueError(f"attention.{use}={mode} is unknown; use one of {', '.join(ALL_MODES)}")
        if self.generate == "bottleneck":
            raise ValueError("attention.generate=bottleneck cannot be decoded with a cache; use causal or prefix")

    @property
    def name(self) -> str:
        return self.embed if self.embed == self.generate else f"{self.embed}/{self.generate}"
