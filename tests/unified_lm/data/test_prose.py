from __future__ import annotations

import pytest

from unified_lm.data.packaged.prose import first_sentence, mask_names, parse_docstring, without_markup


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        (":class:`~torch.nn.Linear` and :func:`abs`", "`Linear` and `abs`"),
        (":py:meth:`close <io.close>` it", "`close` it"),
        ("``x`` times `y`", "`x` times `y`"),
        ("see `the guide <https://example.org>`_ first", "see the guide first"),
        ("the [`Trainer`] and [a page](https://example.org/a_(b))", "the `Trainer` and a page"),
        ("**bold**, *leaning*, and **kwargs", "bold, leaning, and **kwargs"),
        ("as shown in [1]_ and [Knuth98]_.", "as shown in and."),
        ("read https://example.org/a.b, then stop.", "read, then stop."),
        ("<Tip>\n\nspaces   and\nlines</Tip>", "spaces and lines"),
        ("the `name' of old", "the 'name' of old"),
    ],
)
def test_markup_is_removed_and_text_stays(marked: str, plain: str) -> None:
    assert without_markup(marked) == plain


@pytest.mark.parametrize(
    ("paragraph", "sentence"),
    [
        ("Return the sum. It is exact.", "Return the sum."),
        ("Read a file, e.g. A log, whole. Then stop.", "Read a file, e.g. A log, whole."),
        ("Version 1.5 of it. Next.", "Version 1.5 of it."),
        ("No full stop here", "No full stop here"),
        ("Is it empty? Tell.", "Is it empty?"),
    ],
)
def test_a_sentence_ends_where_a_reader_would_end_it(paragraph: str, sentence: str) -> None:
    assert first_sentence(paragraph) == sentence


def test_copies_that_differ_in_a_name_are_equal_when_masked() -> None:
    assert mask_names("Builds a BertModel from `config`.") == mask_names("builds a RobertaModel from `configuration`")
    assert mask_names("Builds a BertModel.") != mask_names("Builds a large BertModel.")


DOCSTRING = """norm(x, ord=None)

    Return the norm of a vector or of a matrix. Second sentence.

    The norm is one of several, chosen by the `ord` parameter.

    .. versionadded:: 1.2
       With more text that is no prose of this function at all.

    - a list
    - of things

    It is computed in double precision where that is possible.

    Parameters
    ----------
    x : array
        This must never be read as an explanation of anything.

    Afterwards there is more text that belongs to a section.
    """


def test_a_docstring_gives_its_first_sentence_and_the_prose_before_its_sections() -> None:
    said = parse_docstring(DOCSTRING)
    assert said is not None
    assert said.description == "Return the norm of a vector or of a matrix."
    assert said.paragraphs == (
        "The norm is one of several, chosen by the `ord` parameter.",
        "It is computed in double precision where that is possible.",
    )


@pytest.mark.parametrize(
    "section", ["Args:", "Returns:", "Examples::", ">>> norm(1)", ":param x: it", "```python", "## Use"]
)
def test_text_after_a_section_is_no_prose(section: str) -> None:
    said = parse_docstring(f"Return the norm of a vector.\n\n{section}\n\nThis is a sentence of the section itself.")
    assert said is not None and said.paragraphs == ()


@pytest.mark.parametrize(
    "docstring",
    [
        "",
        "   \n  ",
        "Too few words.",
        "Args:\n    x: the thing that is given to it",
        "This function is deprecated since version two.",
        "Alias for the function that does it.",
        "See the other function for all details.",
        "{placeholder} of a template that is filled later on.",
        "word " * 61,
        "f(x) -> the thing that comes out",
    ],
)
def test_docstrings_that_say_too_little_are_left_out(docstring: str) -> None:
    assert parse_docstring(docstring) is None
