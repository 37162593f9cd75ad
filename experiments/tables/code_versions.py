"""Who made a number: the code and the libraries, compared by what they compute and not by their commits."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

APART = frozenset({"hydra-core", "omegaconf", "wandb"})  # libraries that no number passes through


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Equal makers compute alike. `code`: a digest of what the code computes, or its commit where none is known."""

    code: str
    libraries: frozenset[tuple[str, str]]
    commit: str = field(compare=False)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Maker":
        """The maker that a record names."""
        changed = " with changes" if entry["dirty"] else ""
        commit = f"commit {entry['commit'][:7]}{changed}" if entry["commit"] else "an unknown commit"
        libraries = frozenset((name, version) for name, version in entry["versions"].items() if name not in APART)
        return cls(code=entry["code"] or commit, libraries=libraries, commit=commit)


def several(makers: Iterable[tuple[int, Maker]]) -> str:
    """Which seed was made by which of several makers, and where their libraries differ; "" where one made them all."""
    seeds: dict[Maker, set[int]] = {}
    for seed, maker in makers:
        seeds.setdefault(maker, set()).add(seed)
    if len(seeds) < 2:
        return ""
    shared = frozenset.intersection(*(maker.libraries for maker in seeds))
    parts = []
    for maker, own in seeds.items():
        libraries = ", ".join(" ".join(one) for one in sorted(maker.libraries - shared))
        parts.append(f"{named(own)} by {maker.commit}{f' ({libraries})' if libraries else ''}")
    return f"runs of different versions: {'; '.join(parts)}"


def named(seeds: Collection[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
