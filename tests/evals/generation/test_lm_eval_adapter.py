"""The live model behind lm-eval's interface: what it reads, and that it agrees with lm-eval's own model class."""

import math
from collections.abc import Sequence

import pytest
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from evals.generation.lm_eval_adapter import LiveLM, parse_generation_settings
from tests.evals.lm import CONF, settings
from unified_lm.attention import Plan
from unified_lm.backbones import Tiny
from unified_lm.inference.generate import BatchedGenerator, Generated
from unified_lm.model import UnifiedLM
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

CHATML = Template(
    name="chatml",
    query="<|im_start|>user\n{instruction}{text}<|im_end|>\n{slots}",
    document="{text}",
    answer="<|im_start|>assistant\n{text}<|im_end|>\n",
)
PLAIN = Template(name="plain", query="{instruction}{text}", document="{text}", answer=" = {text}{eos}")
TALK = [{"role": "user", "content": "Sort the list"}]


class Listening(BatchedGenerator):
    """A generator that remembers the ids it was given."""

    def logprobs(self, pairs: Sequence, **options) -> list:
        self.heard = [list(context) for context, _ in pairs]
        self.scored = [list(continuation) for _, continuation in pairs]
        return super().logprobs(pairs, **options)

    def generate(self, prompts: Sequence, *args, **options) -> list[Generated]:
        self.heard = self.continued = [list(prompt) for prompt in prompts]
        return super().generate(prompts, *args, **options)


def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """One that adds no BOS, one that adds it itself, and one that has none."""
    plain, adding, none = (Tiny().load().tokenizer for _ in range(3))
    adding._tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", adding.bos_token_id)]
    )
    none.bos_token = None
    return {"adds none": plain, "adds its own": adding, "has none": none}


def live(tokenizer: PreTrainedTokenizerFast | None = None, style: str = "none", template: Template = CHATML) -> LiveLM:
    loaded = Tiny().load()
    model = UnifiedLM(loaded.model, tokenizer or loaded.tokenizer)
    rows = Format(template=template, tokenizer=model.tokenizer, plan=Plan(embed="causal", generate="causal"))
    return LiveLM(Listening(model, rows, weights="tiny"), style=style)


def scored(context: str, continuation: str) -> Instance:
    return Instance(request_type="loglikelihood", doc={}, arguments=(context, continuation), idx=0)


def answered(context: str, doc: int = 0, **settings) -> Instance:
    arguments = (context, {"until": ["\n"], "max_gen_toks": 4} | settings)
    return Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0, metadata=("task", doc, 1))


@pytest.mark.parametrize("kind", tokenizers())
@pytest.mark.parametrize("style", ["none", "tokenizer", "rows"])
@pytest.mark.parametrize("template", [CHATML, PLAIN], ids=["a template that begins with BOS", "one that does not"])
def test_every_request_begins_with_exactly_one_bos(kind: str, style: str, template: Template) -> None:
    lm = live(tokenizers()[kind], style, template)
    prompt = "Sort the list" if style == "none" else lm.apply_chat_template(TALK)
    bos = lm.generator.bos_token_id
    for ask in (lambda: lm.loglikelihood([scored(prompt, " now")]), lambda: lm.generate_until([answered(prompt)])):
        ask()
        (ids,) = lm.generator.heard
        assert ids[:1] == [bos] or bos is None
        assert ids[1:2] != [bos] or bos is None
        assert lm.tokenizer.decode(ids).endswith(prompt)
    assert set(lm.first_ids) == {"loglikelihood", "generate"}


def test_an_empty_context_is_one_bos_or_the_end_of_text() -> None:
    for tokenizer in tokenizers().values():
        lm = live(tokenizer)
        lm.loglikelihood([scored("", "a text")])
        assert lm.generator.heard == [[lm.prefix_token_id]]


def test_a_doubled_bos_is_refused() -> None:
    lm = live()
    for ask in (lm.loglikelihood, lm.generate_until):
        request = scored if ask == lm.loglikelihood else lambda context, _: answered(context)
        with pytest.raises(ValueError, match="exactly one BOS"):
            ask([request("<|im_start|><|im_start|>user", " a")])


def test_behind_the_header_of_an_answer_only_the_answer_is_scored() -> None:
    lm = live(style="rows")
    prompt = lm.apply_chat_template(TALK)
    assert prompt.endswith("assistant\n")
    (result,) = lm.loglikelihood([scored(prompt, "It is sorted")])
    assert result.tokens == len(lm.tokenizer.encode("It is sorted", add_special_tokens=False))
    (elsewhere,) = lm.loglikelihood([scored("Sort the list\n", "It is sorted")])
    assert elsewhere.tokens > result.tokens


def merging() -> PreTrainedTokenizerFast:
    """A tokenizer that takes a sign and the newlines behind it for one word, as Qwen's does."""
    words = r"[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+| ?\p{L}+|\p{N}|\s+"
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trained = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["Really?\nYes.\nHow?\n Sort the list:\n"] * 20, trained)
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>")


TEMPLATES = sorted(path.stem for path in (CONF.parent / "template").glob("*.yaml"))


@pytest.mark.parametrize("tokenizer", [None, merging()], ids=["the usual", "one that merges signs and newlines"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_in_the_rows_template_has_the_tokens_and_slots_of_a_training_row(name, tokenizer) -> None:
    template = Template(**settings(yaml.safe_load((CONF.parent / "template" / f"{name}.yaml").read_text())))
    loaded = Tiny().load()
    model = UnifiedLM(loaded.model, tokenizer or loaded.tokenizer, slots=2)
    form = Format(template=template, tokenizer=model.tokenizer, plan=Plan(embed="causal", generate="causal"), slots=2)
    lm = LiveLM(Listening(model, form, weights="tiny", with_slots=True), style="rows")
    talk = [("user", "How?"), ("assistant", "So."), ("user", "Really?")]
    (row,) = form.answer_sequences(["Really?"], [" Yes."], histories=[talk[:2]])
    begins, ends = row.spans["answer"]
    prompt = lm.apply_chat_template([{"role": role, "content": content} for role, content in talk])
    lm.generate_until([answered(prompt)])
    lm.loglikelihood([scored(prompt, " Yes.")])
    bos = () if row.tokens[0] == model.tokenizer.bos_token_id else (model.tokenizer.bos_token_id,)
    for ids in (lm.generator.heard, lm.generator.continued):
        assert lm.generator.fit_prompt(ids[0], 4).ids == bos + row.tokens[:begins]
    assert lm.generator.scored == [list(row.tokens[begins:ends])]
    if tokenizer is not None and name in ("plain", "llm2vec"):
        assert "".join(model.tokenizer.convert_ids_to_tokens(lm.tok_encode(prompt)))[-2:] == "?Ċ"
        assert lm.tok_encode(prompt) != lm.generator.heard[0]  # as one string it is another prompt


def test_an_empty_message_which_no_training_row_has_is_still_written() -> None:
    lm = live(style="rows")
    prompt = lm.apply_chat_template([{"role": "user", "content": ""}])
    lm.loglikelihood([scored(prompt, "Yes")])
    assert lm.generator.heard == [lm.tok_encode(prompt)]


def test_a_conversation_is_refused_where_its_template_is_missing() -> None:
    without = live(style="tokenizer")
    without.tokenizer.chat_template = None
    no_rows = LiveLM(BatchedGenerator(without.generator.model, weights="tiny"), style="rows")
    for lm, why in ((without, "no chat template"), (no_rows, "no format of rows"), (live(style="none"), "writes none")):
        with pytest.raises(ValueError, match=why):
            lm.apply_chat_template(TALK)


@pytest.fixture(scope="module")
def peers() -> tuple[LiveLM, HFLM]:
    """Our model and lm-eval's on the same weights, the latter on a tokenizer that adds the BOS."""
    loaded = Tiny().load()
    peer = HFLM(
        pretrained=loaded.model,
        tokenizer=tokenizers()["adds its own"],
        add_bos_token=True,
        batch_size=4,
        max_length=24,
        softmax_dtype="float32",
    )
    ours = live()
    ours.generator.max_length = 24
    return ours, peer


def test_likelihoods_are_those_of_lm_evals_own_model(peers: tuple[LiveLM, HFLM]) -> None:
    contexts = ["A query asks a question; ", "Translate", "", "The retrieval system ranks every document"]
    requests = [scored(context, text) for context in contexts for text in ("a", " the best ten", " water and bread")]
    ours, theirs = (lm.loglikelihood(requests, disable_tqdm=True) for lm in peers)
    assert [one[0] for one in ours] == pytest.approx([one[0] for one in theirs], abs=1e-4)
    assert [one[1] for one in ours] == [one[1] for one in theirs]


def test_answers_are_those_of_lm_evals_own_model(peers: tuple[LiveLM, HFLM]) -> None:
    contexts = ["A query asks", "Translate", "The retrieval system ranks every"]
    requests = [answered(text, until=["e", "ing"], max_gen_toks=10) for text in contexts]
    ours, theirs = (lm.generate_until(requests, disable_tqdm=True) for lm in peers)
    assert ours == theirs


def test_rolling_likelihoods_are_those_of_lm_evals_own_model_which_must_not_double_the_bos() -> None:
    loaded = Tiny().load()
    peer = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=1, max_length=24)
    ours = live()
    ours.generator.max_length = 24
    texts = ["A language model reads a text from left to right and predicts the next token, one by one.", "ten"]
    requests = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0) for text in texts]
    theirs = peer.loglikelihood_rolling(requests, disable_tqdm=True)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(theirs, abs=1e-3)


def test_answers_keep_what_lm_eval_drops() -> None:
    lm = live()
    free = lm.generate_until([answered("A query", 0, max_gen_toks=6), answered("Translate", 1, max_gen_toks=1)])
    assert [len(lm.answers["task", doc]) for doc in (0, 1)] == [1, 1]
    assert lm.answers["task", 1][0].tokens == 1 and lm.answers["task", 1][0].truncated
    assert lm.answers["task", 0][0].text == free[0]
    lm.generator.max_length = 8
    lm.generate_until([answered("The retrieval system ranks every document by its similarity", 2)])
    assert (lm.prompts, lm.prompts_cut) == (3, 1)


def test_settings_that_we_would_ignore_are_refused() -> None:
    assert parse_generation_settings({"until": "\n", "max_gen_toks": 5, "do_sample": False}) == (5, ("\n",), 0.0)
    assert parse_generation_settings({"until": [], "max_gen_toks": 5, "do_sample": True, "temperature": 0.7})[2] == 0.7
    with pytest.raises(ValueError, match="top_p"):
        parse_generation_settings({"until": [], "max_gen_toks": 5, "top_p": 0.9})
    with pytest.raises(ValueError, match="no budget"):
        parse_generation_settings({"until": []})


def test_a_continuation_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens of its own"):
        live().loglikelihood([scored("A query", "")])


def test_likelihoods_are_sums_over_their_tokens() -> None:
    lm = live()
    (whole,) = lm.loglikelihood([scored("A query", " asks a question")])
    ids = lm.tok_encode("A query asks a question")
    with torch.no_grad():
        logits = lm.generator.model.backbone(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    steps = [logits[i, ids[i + 1]].item() for i in range(len(ids) - 1)][-whole.tokens :]
    assert whole.logprob == pytest.approx(math.fsum(steps), abs=1e-4)
