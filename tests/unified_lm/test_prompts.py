"""Templates and formats: which tokens a text becomes, which of them are read, and which carry a loss."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import CAUSAL, CHATML, PLANS, form, unified
from unified_lm.packing import IGNORED
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

MODEL = unified(slots=2)
PLAIN = Template(name="plain", query="{instruction}{text}{eos}", document="{text}{eos}", answer=" {text}{eos}")
INSIDE = Template(name="inside", query="<|user|>\n{text}{slots}<|im_end|>", document="{text}", answer="{text}{eos}")
TEXTS = st.text(alphabet=string.printable + "äé漢<|>_", min_size=1, max_size=40).filter(str.strip)


def decode(ids) -> str:
    return MODEL.tokenizer.decode([i for i in ids if i >= 0])


def formatted(template=CHATML, plan=CAUSAL, **options) -> Format:
    return form(MODEL, plan, template, **options)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, instruction=st.one_of(st.just(""), TEXTS))
@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_the_tokens_that_are_pooled_decode_to_the_text_and_nothing_else(template, text, instruction):
    (made,) = formatted(template).query_sequences([text], instruction)
    start, stop = made.spans["text"]
    assert decode(made.tokens[start:stop]).lstrip() == text.lstrip()
    assert made.tokens.count(MODEL.tokenizer.bos_token_id) == 1 or template.name == "chatml"


def test_the_exact_strings_of_the_chat_template():
    maker = formatted()
    (query,) = maker.query_sequences(["how?"], "Find it")
    assert decode(query.tokens) == "<|im_start|>user\nFind it: how?<|im_end|>\n"
    assert decode(maker.query_sequences(["how?"])[0].tokens) == "<|im_start|>user\nhow?<|im_end|>\n"
    assert decode(maker.document_sequences(["so."])[0].tokens) == "<|im_start|>so."
    (row,) = maker.answer_sequences(["how?"], ["so."], "Find it", [[("system", "be brief")]])
    assert decode(row.tokens) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nFind it: how?<|im_end|>\n"
        "<|im_start|>assistant\nso.<|im_end|>\n"
    )


def test_a_special_token_written_by_a_user_is_plain_text():
    (made,) = formatted().query_sequences(["a<|im_end|>b"])
    assert made.tokens.count(MODEL.tokenizer.eos_token_id) == 1
    assert decode(made.tokens[slice(*made.spans["text"])]) == "a<|im_end|>b"


@pytest.mark.parametrize("template", [CHATML, PLAIN, INSIDE])
def test_the_prompt_is_the_same_with_and_without_an_answer(template):
    maker = formatted(template)
    (bare,) = maker.query_sequences(["a question"])
    (row,) = maker.answer_sequences(["a question"], ["an answer"])
    assert row.tokens[: len(bare)] == bare.tokens
    assert {name: row.spans[name] for name in bare.spans} == bare.spans


def test_slots_stand_after_the_template_or_where_it_puts_them():
    (after,) = formatted(CHATML).query_sequences(["a question"])
    assert after.tokens[-2:] == (-1, -2) and after.spans["slots"] == (len(after) - 2, len(after))
    (inside,) = formatted(INSIDE).query_sequences(["a question"])
    assert inside.tokens[-3:] == (-1, -2, MODEL.tokenizer.eos_token_id)
    assert inside.tokens[slice(*inside.spans["slots"])] == (-1, -2)
    assert inside.spans["prompt"][1] == inside.spans["slots"][0]
    (document,) = formatted(CHATML).document_sequences(["a document"])
    assert document.tokens[-1] == -1 and document.tokens.count(-1) == 1


def test_labels_are_the_answer_and_its_end_and_nothing_else():
    (row,) = formatted().answer_sequences(["a question"], ["an answer"])
    targets = [label for label in row.labels if label != IGNORED]
    assert decode(targets) == "an answer<|im_end|>"
    assert all(row.tokens[i + 1] == label for i, label in enumerate(row.labels) if label != IGNORED)
    assert decode(row.tokens[slice(*row.spans["answer"])]) == "an answer"


def test_the_end_of_an_answer_is_a_target_although_pad_and_eos_are_one_token():
    assert MODEL.tokenizer.pad_token_id == MODEL.tokenizer.eos_token_id
    (row,) = formatted().answer_sequences(["q"], ["a"])
    assert MODEL.tokenizer.eos_token_id in row.labels


def test_an_answer_that_was_cut_is_not_taught_to_end_there():
    (row,) = formatted(answer_length=12).answer_sequences(["q"], ["a very long answer " * 9])
    assert MODEL.tokenizer.eos_token_id not in row.labels
    assert len(row.tokens) == row.spans["slots"][1] + 12


@pytest.mark.parametrize("template", [CHATML, PLAIN, INSIDE])
@pytest.mark.parametrize("limit", [12, 20])
def test_a_long_text_gives_way_and_the_template_its_eos_and_the_slots_stay(template, limit):
    (made,) = formatted(template, query_length=limit).query_sequences(["word " * 50])
    plain = [t for t in made.tokens if t >= 0]
    assert len(plain) - (template is not CHATML) <= limit
    assert made.tokens.count(-1) == made.tokens.count(-2) == 1
    assert MODEL.tokenizer.eos_token_id in plain[-2:]


def test_no_room_for_the_text_and_an_empty_text_are_errors_that_name_the_way_out():
    with pytest.raises(ValueError, match=r"leave no room for the text .* raise the length"):
        formatted(query_length=8).query_sequences(["text"], "a long instruction that fills the row")
    with pytest.raises(ValueError, match="the text is empty"):
        formatted().query_sequences([""])
    with pytest.raises(ValueError, match="no turn for role 'tool'"):
        formatted().answer_sequences(["q"], ["a"], "", [[("tool", "x")]])


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("instruction", {"instruction": "Task: {instructions}"}),
        ("instruction", {"instruction": "Task: "}),
        ("turns.system", {"turns": {"system": "{content}"}}),
        ("turns.user", {"turns": {"user": "{text} {instruction}"}}),
    ],
)
def test_instructions_and_turns_that_would_lose_their_text_are_refused(part, wrong):
    with pytest.raises(ValueError, match=f"template.{part}="):
        Template(name="wrong", query="{text}", document="{text}", answer="{text}", **wrong)


def test_a_template_with_an_unknown_placeholder_is_refused():
    with pytest.raises(ValueError, match="prompt would stay unfilled"):
        Template(name="x", query="{prompt}{text}", document="{text}", answer="{text}")


@pytest.mark.parametrize("name", PLANS)
def test_sequences_carry_the_modes_of_the_plan(name):
    maker = formatted(plan=PLANS[name])
    (query,), (document,) = maker.query_sequences(["q"]), maker.document_sequences(["d"])
    assert (query.mode, document.mode) == (PLANS[name].embed,) * 2
    (row,) = maker.answer_sequences(["q"], ["a"])
    assert row.mode == PLANS[name].generate
    if name == "prefix":
        assert (query.prefix, document.prefix) == (len(query), len(document))
        assert row.prefix == len(query) < len(row)


def test_plain_text_predicts_every_next_token_after_one_bos():
    row = formatted().plain_sequence("some plain text")
    assert row.tokens[0] == MODEL.tokenizer.bos_token_id
    assert row.labels == (*row.tokens[1:], IGNORED)
    with pytest.raises(ValueError, match="has no tokens"):
        formatted().plain_sequence("")


def test_many_texts_at_once_are_the_texts_one_by_one():
    maker = formatted()
    texts, instructions = ["one", "two words", "three <|im_end|> x"], ["", "Do", "Do"]
    together = maker.query_sequences(texts, instructions)
    assert together == [maker.query_sequences([t], i)[0] for t, i in zip(texts, instructions, strict=True)]


ECHO = Template(name="echo", query="Say: {again} Again: {text}{eos}", document="{again}\n{text}", answer="{text}{eos}")
E5 = Template(name="e5", query="{text}{eos}", document="{text}{eos}", prompt="{text}", answer=" {text}{eos}")


@settings(max_examples=50, deadline=None)
@given(text=TEXTS.filter(lambda text: len(text) > 3), limit=st.integers(24, 60))
def test_an_echo_reads_the_second_copy_and_both_copies_give_way_alike(text, limit):
    (made,) = formatted(ECHO, query_length=limit).query_sequences([text * 3])
    first, second = (decode(made.tokens[slice(*made.spans[name])]).lstrip() for name in ("again", "text"))
    assert made.spans["again"][1] < made.spans["text"][0]
    assert abs(len(first) - len(second)) <= 12 and (text * 3).lstrip().startswith(second.rstrip("�"))
    assert decode(made.tokens).startswith("<|im_start|>Say:") and made.tokens[-3] == MODEL.tokenizer.eos_token_id


def test_a_prompt_of_its_own_stands_in_front_of_an_answer_only():
    maker = formatted(E5)
    (query,) = maker.query_sequences(["how?"])
    (row,) = maker.answer_sequences(["how?"], ["so."])
    assert decode(query.tokens) == "<|im_start|>how?<|im_end|>"
    assert decode(row.tokens) == "<|im_start|>how? so.<|im_end|>"
