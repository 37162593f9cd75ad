"""Laws of packaged text: real, clean, without copies, and nothing that is scored was trained on."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unified_lm.data.packaged import corpus
from unified_lm.data.packaged import documentation as extraction
from unified_lm.data.packaged.corpus import held_out_objects, training_objects
from unified_lm.data.packaged.documentation import DocumentedObject, documented_objects, extract_objects
from unified_lm.data.packaged.near_duplicates import find_near_duplicates
from unified_lm.data.packaged.prose import mask_names
from unified_lm.data.packaged.source import HELD_OUT_PACKAGES, TRAINING_PACKAGES, PackagedText
from unified_lm.data.rows import TrainingRow

KINDS: list[dict[str, Any]] = [
    {"kind": "pairs"},
    {"kind": "pairs", "positive": "explanation", "negatives": 2},
    {"kind": "triples", "negatives": 1},
    {"kind": "dialogues"},
    {"kind": "text"},
]


def said(row: TrainingRow) -> list[str]:
    return [text for text in (row.query, row.positive, *row.negatives, row.answer, row.text) if text]


def test_nothing_scored_was_trained_on_not_even_nearly() -> None:
    scored = sorted({text for found in held_out_objects() for text in corpus.object_texts(found)})
    trained = sorted(
        {text for kind in KINDS for row in PackagedText(split="train", **kind).rows() for text in said(row)}
    )
    assert len(scored) > 5000 and len(trained) > 10000
    near = {pair.scored for pair in find_near_duplicates(scored, trained)}
    assert len(near) < 0.005 * len(scored)


def test_what_nearly_repeats_a_scored_text_is_not_trained_on() -> None:
    scored, repeated, other = (
        DocumentedObject(
            package=package,
            module=package,
            qualname="f",
            kind="function",
            signature="f()",
            description=f"Say what the package named {package} is for.",
            paragraphs=(paragraph,),
            code=None,
        )
        for package, paragraph in (
            ("scored", "It returns one for each of the things that it was given."),
            ("repeated", "It returns one for each of the things that it was told."),
            ("other", "It returns two of everything that was ever put into it."),
        )
    )
    assert corpus.drop_near_duplicates([repeated, other], [scored]) == [other]


def test_the_splits_share_no_package() -> None:
    assert not set(HELD_OUT_PACKAGES) & set(TRAINING_PACKAGES)
    for found, packages in ((held_out_objects(), HELD_OUT_PACKAGES), (training_objects(), TRAINING_PACKAGES)):
        assert {thing.package for thing in found} == set(packages)
        assert all(thing.package == "stdlib" or thing.module.split(".")[0] == thing.package for thing in found)


def test_what_is_scored_depends_on_the_scored_packages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scored, trained = (PackagedText(kind="pairs", split=split).fingerprint() for split in ("held_out", "train"))
    monkeypatch.setattr(extraction.platform, "python_version", lambda: "3.99.0")
    assert PackagedText(kind="pairs", split="held_out").fingerprint() == scored
    assert PackagedText(kind="pairs", split="train").fingerprint() != trained


def test_the_build_label_of_a_package_does_not_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PackagedText(kind="pairs", split="train").fingerprint()
    real = extraction.importlib.metadata.version
    monkeypatch.setattr(extraction.importlib.metadata, "version", lambda name: real(name).partition("+")[0] + "+cu130")
    assert PackagedText(kind="pairs", split="train").fingerprint() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_each_kind_has_what_its_loss_needs(kind: dict[str, Any], split: str) -> None:
    rows = list(PackagedText(split=split, **kind).rows())
    assert len(rows) > (1000 if split == "train" else 250)
    pair = kind["kind"] in ("pairs", "triples")
    for row in rows:
        assert bool(row.query) == (kind["kind"] != "text") == (row.text is None)
        assert (row.positive is not None) == pair
        assert (row.answer is not None) == (kind["kind"] in ("triples", "dialogues"))
        assert len(row.negatives) == kind.get("negatives", 0)
        assert row.positive not in row.negatives
    assert len({tuple(said(row)[:1]) for row in rows}) == len(rows)


def test_documents_have_no_def_line_and_no_docstring_and_do_not_repeat_their_query() -> None:
    for found in [*held_out_objects(), *training_objects()[::4]]:
        if found.code is not None:
            (body,) = ast.parse("async def f():\n" + "".join(f"    {line}\n" for line in found.code.splitlines())).body
            assert isinstance(body, ast.AsyncFunctionDef)
            inside = [node for node in ast.walk(body) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            assert not any((ast.get_docstring(node) or "").strip() for node in inside)
            assert not re.match(rf"(async )?def {found.qualname.rpartition('.')[2]}\(", found.code)
            assert found.description.rstrip(".").lower() not in found.code.lower()


def test_no_two_objects_say_the_same_names_aside() -> None:
    for objects in (held_out_objects(), training_objects()):
        descriptions = Counter(mask_names(found.description) for found in objects)
        codes = Counter(found.code for found in objects if found.code)
        paragraphs = Counter(mask_names(text) for found in objects for text in found.paragraphs)
        assert {max(count.values()) for count in (descriptions, codes, paragraphs)} == {1}


def test_descriptions_are_sentences_about_public_things() -> None:
    for found in [*held_out_objects(), *training_objects()]:
        assert 5 <= len(found.description.split()) <= 60
        assert not any(part.startswith("_") for part in found.qualname.split("."))
        assert not re.search(r":\w+:`|deprecated|>>>|https?://", found.description)


def test_hard_negatives_come_from_the_same_module_where_it_has_enough() -> None:
    modules = {found.code: found.module for found in training_objects() if found.code}
    sizes = Counter(modules.values())
    for row in PackagedText(kind="pairs", split="train", negatives=2, limit=2000).rows():
        if sizes[modules[row.positive]] > 2:
            assert {modules[negative] for negative in row.negatives} == {modules[row.positive]}
        assert len(set(row.negatives)) == 2


def test_the_first_rows_are_a_sample_of_all_packages_and_every_nth_a_subset() -> None:
    sample = Counter(found.package for found in training_objects()[:400])
    assert set(sample) == set(TRAINING_PACKAGES)
    rows = list(PackagedText(kind="pairs", split="train").rows())
    assert list(PackagedText(kind="pairs", split="train", every=10, limit=20).rows()) == rows[:200:10]


def test_documentation_attached_to_compiled_code_is_read() -> None:
    names = {found.name for found in [*held_out_objects(), *training_objects()]}
    assert names & {"torch.stack", "torch.logsumexp", "torch.cumsum"}
    assert names & {"scipy.special.erfinv", "scipy.special.eval_hermite", "scipy.special.expi"}
    assert names & {"numpy._core.multiarray.asarray", "numpy._core.multiarray.arange", "numpy._core.umath.arctan2"}


SOURCE = '''
def shown(x, *, y=1):
    """Add one to the thing that is given.

    It is returned as a new thing.
    """
    # A comment stays.
    def inner():
        """This docstring would give the answer away."""
        return 1

    return x + inner()

def _hidden():
    """Never seen by any reader of the documentation."""
    return 1

class Thing:
    """A thing that other things are made of."""

    def method(self):
        """Do what a thing does when it is asked."""
        a = 1
        return a

    @deprecated("soon")
    def old(self):
        """Do what a thing did when it was young."""
        a = 1
        return a

    async def single(self):
        """Do in one line what needs no more."""
        return 1

name = add_docstr(other.name, r"""
name(x) -> y

Return the name by which a thing is known.

{more}
""".format(more="x"))
add_newdoc("pkg.core", "table", ("size", """How many things the table holds now."""))
'''


def test_objects_are_read_from_source_with_names_prose_and_body() -> None:
    found = {thing.qualname: thing for thing in documented_objects("pkg", "pkg.mod", SOURCE)}
    assert list(found) == ["shown", "Thing", "Thing.method", "Thing.single", "name", "size"]
    assert found["shown"] == DocumentedObject(
        package="pkg",
        module="pkg.mod",
        qualname="shown",
        kind="function",
        signature="shown(x, *, y=1)",
        description="Add one to the thing that is given.",
        paragraphs=("It is returned as a new thing.",),
        code="# A comment stays.\ndef inner():\n    return 1\nreturn x + inner()",
    )
    assert (found["Thing"].kind, found["Thing"].code) == ("class", None)
    assert found["Thing.method"].code == "a = 1\nreturn a"
    assert found["Thing.single"].code is None
    assert found["name"].name == "pkg.mod.name" and found["size"].name == "pkg.core.table.size"


def test_packages_are_read_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud" / "__init__.py").write_text(f"raise SystemExit('imported')\n{SOURCE}")
    (tmp_path / "loud" / "broken.py").write_text("def (:")
    (tmp_path / "loud" / "tests").mkdir()
    (tmp_path / "loud" / "tests" / "helpers.py").write_text(
        'def f():\n    """Help the tests of this package to run."""'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [found.qualname for found in extract_objects(["loud"])][:2] == ["shown", "Thing"]
    assert {found.module.partition(".")[0] for found in extract_objects(["loud"])} == {"loud"}
    assert "loud" not in sys.modules


def test_a_package_that_is_not_installed_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="pip install no_such_package"):
        extract_objects(["no_such_package"])


def test_fingerprints_need_neither_text_nor_tensors() -> None:
    program = (
        "import sys; from unified_lm.data.packaged.source import PackagedText\n"
        "print(PackagedText(kind='pairs', split='train').fingerprint())\n"
        "assert not {'torch', 'pandas', 'scipy', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules), sys.modules"
    )
    environment = {**os.environ, "UNIFIED_LM_CACHE": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == PackagedText(kind="pairs", split="train").fingerprint()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_corpus_fingerprint_is_a_digest_of_the_rows(split: str) -> None:
    one = PackagedText(kind="triples", split=split, limit=50).rows()
    assert one.corpus_fingerprint == PackagedText(kind="triples", split=split, limit=50).rows().corpus_fingerprint
    assert one.corpus_fingerprint != PackagedText(kind="triples", split=split, limit=49).rows().corpus_fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pair"}, "kind=pair of PackagedText is not one of pairs, triples, dialogues, text"),
        ({"split": "test"}, "split=test of PackagedText is not one of train, held_out"),
        ({"positive": "source"}, "positive=source"),
        ({"negatives": -1}, "negatives=-1"),
        ({"limit": 0}, "limit=0"),
        ({"kind": "text", "negatives": 1}, "kind=text has no documents"),
        ({"kind": "triples", "positive": "explanation"}, "use positive=code"),
    ],
)
def test_impossible_requests_are_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackagedText(**{"kind": "pairs", "split": "train", **options})
