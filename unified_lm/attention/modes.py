"""Which direction a model looks in when it embeds and when it generates."""

from __future__ import annotations

from dataclasses import dataclass

from unified_lm.attention.layout import ALL_MODES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Modes of the two uses of one model.

    `embed`: sequences that are read out as vectors ("bottleneck": causal, with slots that do not see each other).
    `generate`: sequences whose answer is predicted; with "prefix" the
    prompt is seen both ways and the answer causally. A bidirectional `generate` has no meaning for next-token
    prediction, since every token would see its own answer: methods with a next-token loss refuse it.
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
