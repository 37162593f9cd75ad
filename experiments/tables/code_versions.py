"""Compare the code versions of runs by what the code computes, not by commit."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from experiments.runs.provenance import CodeVersion

IRRELEVANT_LIBRARIES = frozenset({"hydra-core", "omegaconf", "wandb"})  # libraries that no number passes through


@dataclass(frozen=True, kw_only=True)
class CodeFingerprint:
    """Code and libraries of a run; equal fingerprints compute alike.

    `code`: digest of the source that computes, or the commit if no digest is known.
    """

    code: str
    libraries: frozenset[tuple[str, str]]
    commit: str = field(compare=False)

    @classmethod
    def from_version(cls, version: CodeVersion) -> "CodeFingerprint":
        """The fingerprint of a record's code version."""
        changed = " with changes" if version.dirty else ""
        commit = f"commit {version.commit[:7]}{changed}" if version.commit else "an unknown commit"
        libraries = frozenset(
            (name, number) for name, number in version.versions.items() if name not in IRRELEVANT_LIBRARIES
        )
        return cls(code=version.code or commit, libraries=libraries, commit=commit)


def describe_version_differences(makers: Iterable[tuple[int, CodeFingerprint]]) -> str:
    """Which seeds ran with which code version, and which libraries differ; "" if there is one version."""
    seeds: dict[CodeFingerprint, set[int]] = {}
    for seed, maker in makers:
        seeds.setdefault(maker, set()).add(seed)
    if len(seeds) < 2:
        return ""
    shared = frozenset.intersection(*(maker.libraries for maker in seeds))
    parts = []
    for maker, own in seeds.items():
        libraries = ", ".join(" ".join(one) for one in sorted(maker.libraries - shared))
        parts.append(f"{name_seeds(own)} at {maker.commit}{f' ({libraries})' if libraries else ''}")
    return f"seeds ran with different code versions: {'; '.join(parts)}"


def name_seeds(seeds: Collection[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
