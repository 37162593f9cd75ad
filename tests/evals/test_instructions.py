"""Instructions are data: a task that the table does not know is an error, and documents get none unless it says so."""

from pathlib import Path

import pytest

from evals.instructions import TABLES_FOLDER, Instructions, describe_instructions, read_instructions


def test_a_side_gets_what_the_table_says_and_documents_get_nothing_else() -> None:
    table = Instructions(name="t", tasks={"A": {"query": "find"}, "B": {"query": "", "document": "a passage"}})
    assert [table.instruction_for(task, side) for task in "AB" for side in ("query", "document")] == [
        "find",
        "",
        "",
        "a passage",
    ]
    assert describe_instructions(table.instruction_for("A", "query"), table.instruction_for("A", "document")) == "find"
    assert (
        describe_instructions(table.instruction_for("B", "query"), table.instruction_for("B", "document"))
        == " | document: a passage"
    )


def test_an_unknown_task_is_an_error_and_not_an_empty_instruction() -> None:
    table = Instructions(name="t", tasks={"SciFact": {"query": "find"}})
    with pytest.raises(ValueError, match=r"'t' do not know the task 'Scifact' \(nearest: 'SciFact'\)"):
        table.instruction_for("Scifact", "query")


def test_a_table_may_say_what_all_tasks_get_that_it_does_not_name() -> None:
    assert read_instructions("none").instruction_for("A task of one's own", "query") == ""
    table = Instructions(name="t", tasks={"A": {"query": "find"}, "*": {"query": "any", "document": "passage"}})
    assert [table.instruction_for("A", "query"), table.instruction_for("B", "query")] == ["find", "any"]
    assert [table.instruction_for("A", "document"), table.instruction_for("B", "document")] == ["", "passage"]


@pytest.mark.parametrize("sides", [{}, {"document": "a"}, {"query": "a", "passage": "b"}, {"query": None}])
def test_a_malformed_row_is_refused(sides: dict) -> None:
    with pytest.raises(ValueError, match="instructions 't', task 'A'"):
        Instructions(name="t", tasks={"A": sides})


@pytest.mark.parametrize("path", sorted(TABLES_FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_committed_table_reads(path: Path) -> None:
    assert read_instructions(path.stem).tasks


def test_a_table_of_the_users_own_is_read_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("A:\n  query: find\n")
    assert read_instructions(str(tmp_path / "mine.yaml")).instruction_for("A", "query") == "find"
    (tmp_path / "bad.yaml").write_text("- A\n")
    with pytest.raises(ValueError, match="maps each task"):
        read_instructions(str(tmp_path / "bad.yaml"))
    with pytest.raises(ValueError, match=r"use one of .*offline"):
        read_instructions("nowhere")
