"""Who made a number: the code and the libraries, compared by what they compute and not by their commits."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from experiments.runs.provenance import CodeVersion

APART = frozenset({"hydra-core", "omegaconf", "wandb"})  # libraries that no number passes through


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Equal makers compute alike. `code`: a digest of what the code computes, or its commit where none is known."""

    code: str
    libraries: frozenset[tuple[str, str]]
    commit: str = field(compare=False)

    @classmethod
    def of(cls, version: CodeVersion) -> "Maker":
        """The maker that a record names."""
        changed = " with changes" if version.dirty else ""
        commit = f"commit {version.commit[:7]}{changed}" if version.commit else "an unknown commit"
        libraries = frozenset((name, number) for name, number in version.versions.items() if name not in APART)
        return cls(code=version.code or commit, libraries=libraries, commit=commit)


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
