"""Averages as papers state them, over a committed list. Where one member is missing there is no average."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evals.score import Score, Subject, identity_key
from evals.score_store import ScoreStore

METRIC = "mean"
"""The metric of every average; its task is the average's name."""

MIXED_UNIT = "mean score"
"""The unit of an average over values in different units (correlations beside nDCG)."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The plain mean of its members; with `weighted` each counts by the examples that it was scored on.

    A member is the name of an earlier average, or `task`, `task:metric`, `task@subset` or `task:metric@subset`: without
    a metric the task's first one, without a subset the only one or the one over all subsets.
    """

    name: str
    of: Sequence[str]
    weighted: bool = False

    def __post_init__(self) -> None:
        twice = {member for member in self.of if list(self.of).count(member) > 1}
        if twice or not self.of:
            raise ValueError(f"the average {self.name!r} " + (f"counts {sorted(twice)} twice" if twice else "is empty"))


def compute_and_store_means(
    means: Sequence[Mean], scores: Sequence[Score], subject: Subject, store: ScoreStore, problems: Mapping[str, str]
) -> list[Score]:
    """The averages that the scores allow; the store keeps the reason for each of the others.

    `problems`: task -> why it could not be read.
    """
    found, lacking = compute_means(means, scores, {**store.skipped_tasks(), **problems})
    model = subject.embedder or subject.search or subject.generator
    for mean in means:
        identity = {"mean": mean.name, "of": list(mean.of), "model": dict(model.identity), "step": subject.step}
        if mean.name in lacking:
            store.save_skipped(mean.name, identity, lacking[mean.name])
        else:
            store.save(mean.name, identity, [score for score in found if score.task == mean.name])
    return found


def compute_means(
    means: Sequence[Mean], scores: Sequence[Score], why: Mapping[str, str]
) -> tuple[list[Score], dict[str, str]]:
    """The averages that the scores allow, and the reason for each of the others.

    `why`: task -> why it has no score.
    """
    found: dict[str, Score] = {}
    lacking: dict[str, str] = {}
    for mean in means:
        members = {member: found.get(member) or find_member_score(member, scores) for member in mean.of}
        missing = [member for member, score in members.items() if score is None]
        if missing:
            reasons = [f"{member} ({lacking.get(member) or why.get(task_of_member(member)) or 'no score'})"
                       for member in missing[:3]]  # fmt: skip
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            lacking[mean.name] = f"{len(missing)} of {len(mean.of)} missing: {', '.join(reasons)}{more}"
        else:
            found[mean.name] = average_scores(mean, [score for score in members.values() if score is not None])
    return list(found.values()), lacking


def average_scores(mean: Mean, members: Sequence[Score]) -> Score:
    weights = [score.n if mean.weighted else 1 for score in members]
    units = {score.unit for score in members}
    value = sum(weight * score.value for weight, score in zip(weights, members, strict=True)) / sum(weights)
    return replace(
        members[0],
        suite=max((score.suite for score in members), key=len),  # a member's mark is the average's
        task=mean.name,
        metric=METRIC,
        value=value,
        unit=units.pop() if len(units) == 1 else MIXED_UNIT,
        subset="",
        revision=identity_key(of=[[score.task, score.metric, score.subset, score.revision] for score in members])[:16],
        prompt="",
        n=sum(weights),
    )


def task_of_member(member: str) -> str:
    return member.partition("@")[0].partition(":")[0]


def find_member_score(member: str, scores: Sequence[Score]) -> Score | None:
    """The score that a member names, where there is one."""
    name, _, subset = member.partition("@")
    task, _, metric = name.partition(":")
    fitting = [score for score in scores if score.task == task]
    fitting = [score for score in fitting if score.metric == (metric or fitting[0].metric)]
    if len(fitting) > 1 or subset:
        fitting = [score for score in fitting if score.subset == (subset or "all")]
    return fitting[0] if len(fitting) == 1 else None
