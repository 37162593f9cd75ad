"""Generation and likelihoods are a function of the model and the request alone, and agree with transformers' own."""

import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from unified_lm.attention.modes import Plan
from unified_lm.backbones import Tiny
from unified_lm.inference.decoding import next_token_logits
from unified_lm.inference.generate import MIN_SAVED_TOKENS, BatchedGenerator
from unified_lm.model import UnifiedLM
from unified_lm.packing import collate
from unified_lm.prompts.conversation import answer_header, render_conversation
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

DECODERS = {
    "llama": Tiny(),
    "qwen2": Tiny(architecture="qwen2"),
    "qwen3": Tiny(architecture="qwen3"),
    "mistral": Tiny(architecture="mistral"),
    "mistral with a window": Tiny(architecture="mistral", sliding_window=6),
    "gemma3 with a window": Tiny(architecture="gemma3", sliding_window=6),
}
PROMPTS = ["A query asks a question", "Sort the list, return the first element and", "Translate", "the weather was"]
LONG = "The retrieval system ranks every document by its similarity with the query and shows the best. " * 6
CHATML = Template(
    name="chatml",
    query="<|im_start|>user\n{instruction}{text}<|im_end|>\n{slots}",
    document="{text}{slots}",
    answer="<|im_start|>assistant\n{text}<|im_end|>\n",
)


def generator_of(backbone: Tiny = DECODERS["llama"], **options) -> BatchedGenerator:
    loaded = backbone.load()
    return BatchedGenerator(UnifiedLM(loaded.model, loaded.tokenizer), weights=backbone.fingerprint(), **options)


def slotted(mode: str, slots: int = 3, **options) -> BatchedGenerator:
    loaded = DECODERS["llama"].load()
    model = UnifiedLM(loaded.model, loaded.tokenizer, slots=slots)
    rows = Format(template=CHATML, tokenizer=loaded.tokenizer, plan=Plan(embed=mode, generate=mode), slots=slots)
    return BatchedGenerator(model, rows, weights="tiny", with_slots=True, **options)


def ids_of(generator: BatchedGenerator, texts: list[str] = PROMPTS) -> list[list[int]]:
    return [generator.tokenizer.encode(text) for text in texts]


def most_likely(generator: BatchedGenerator, prompt: list[int]) -> int:
    chances = generator.logprobs([(prompt, [i]) for i in range(512)])
    return next(i for i, (_, is_greedy) in enumerate(chances) if is_greedy)


@pytest.fixture(scope="module")
def generator() -> BatchedGenerator:
    return generator_of()


@pytest.mark.parametrize("name", DECODERS)
def test_alone_and_in_a_batch_of_other_lengths_and_transformers_eager_write_the_same_text(name: str) -> None:
    generator = generator_of(DECODERS[name])
    prompts = ids_of(generator)
    together = generator.generate(prompts, 12)
    alone = [generator.generate([prompt], 12)[0] for prompt in prompts]
    assert together == alone
    eager = DECODERS[name].load().model
    eager.set_attn_implementation("eager")
    ends = sorted(generator.find_end_ids())
    greedy = GenerationConfig(do_sample=False, max_new_tokens=12, eos_token_id=ends, pad_token_id=0)
    for prompt, answer in zip(prompts, together, strict=True):
        new = eager.generate(torch.tensor([prompt]), generation_config=greedy)[0, len(prompt) :]
        assert answer.text == generator.tokenizer.decode(new, skip_special_tokens=True)
        assert answer.tokens == len(new)


@pytest.mark.parametrize("name", DECODERS)
def test_likelihoods_are_those_of_a_full_forward_of_transformers_eager(name: str) -> None:
    generator = generator_of(DECODERS[name])
    contexts = ids_of(generator, [*PROMPTS, LONG])
    assert len(contexts[-1]) > MIN_SAVED_TOKENS
    continuations = ids_of(generator, [" and", " the next token, one position", " the", " water, bread and light"])
    pairs = [(context, continuation) for context in contexts for continuation in continuations]
    pairs += [(contexts[0], generator.model.tokenizer.encode(" a text with a context of its own"))]
    eager = DECODERS[name].load().model.eval()
    eager.set_attn_implementation("eager")
    for (context, continuation), (logprob, is_greedy) in zip(pairs, generator.logprobs(pairs), strict=True):
        with torch.no_grad():
            logits = eager(torch.tensor([context + continuation[:-1]])).logits[0, len(context) - 1 :]
        targets = torch.tensor(continuation)
        expected = -torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        assert logprob == pytest.approx(expected, abs=1e-5 * len(continuation))
        assert is_greedy == bool((logits.argmax(-1) == targets).all())


def test_with_absolute_positions_padding_moves_no_token() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.5)
    model = UnifiedLM(GPT2LMHeadModel(config), DECODERS["llama"].load().tokenizer)
    generator = BatchedGenerator(model, weights="absolute")
    prompts = ids_of(generator)
    assert generator.generate(prompts, 8) == [generator.generate([prompt], 8)[0] for prompt in prompts]


def test_what_greedy_decoding_writes_is_greedy_and_anything_else_is_not(generator: BatchedGenerator) -> None:
    prompt = ids_of(generator)[0]
    own = generator.model.backbone.generate(
        torch.tensor([prompt]), generation_config=GenerationConfig(do_sample=False, max_new_tokens=5, pad_token_id=0)
    )[0, len(prompt) :].tolist()
    other = [*own[:-1], (own[-1] + 1) % 512]
    assert [is_greedy for _, is_greedy in generator.logprobs([(prompt, own), (prompt, other)])] == [True, False]


def test_adding_requests_changes_no_likelihood(generator: BatchedGenerator) -> None:
    other, *contexts = ids_of(generator, [PROMPTS[2], PROMPTS[0], LONG])
    first, second = ids_of(generator, [" the capital of France", " ten"])
    for context in contexts:
        few = [(context, first)]
        many = [(other, first), (context, second), *few, (context, first + second), (context, second * 3)]
        assert generator.logprobs(many)[2].logprob == pytest.approx(generator.logprobs(few)[0].logprob, abs=1e-5)


def test_a_smaller_batch_gives_the_same_answers_and_likelihoods(generator: BatchedGenerator) -> None:
    small = BatchedGenerator(generator.model, weights="tiny", batch_tokens=20)
    prompts = ids_of(generator)
    pairs = [(context, end[:4]) for context in ids_of(generator, [PROMPTS[0], LONG]) for end in prompts]
    assert small.generate(prompts, 8) == generator.generate(prompts, 8)
    for one, other in zip(small.logprobs(pairs), generator.logprobs(pairs), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_a_budget_of_one_token_is_truncated_unless_that_token_ends_the_answer(generator: BatchedGenerator) -> None:
    prompt = ids_of(generator)[0]
    cut = generator.generate([prompt], 1)[0]
    assert (cut.tokens, cut.truncated, cut.empty) == (1, True, False)
    ended = generator_of()
    ended.model.backbone.generation_config.eos_token_id = most_likely(ended, prompt)
    whole = ended.generate([prompt], 1)[0]
    assert (whole.text, whole.tokens, whole.truncated, whole.empty) == ("", 1, False, True)


def test_an_answer_ends_before_the_first_stop_string_whatever_tokens_it_spans(generator: BatchedGenerator) -> None:
    prompt = ids_of(generator)[0]
    free = generator.generate([prompt], 16)[0]
    assert free.truncated and free.tokens == 16
    for start in range(0, len(free.text) - 3, 3):
        stop = free.text[start : start + 3]
        cut = generator.generate([prompt], 16, [stop, "never written"])[0]
        assert cut.text == free.text[: free.text.index(stop)]
        assert not cut.truncated
        assert cut.tokens <= free.tokens


def test_a_row_that_stops_early_leaves_the_others_as_they_are(generator: BatchedGenerator) -> None:
    prompts = ids_of(generator)
    free = generator.generate(prompts, 12)
    stop = free[1].text[4:6]
    stopped = generator.generate(prompts, 12, [stop])
    assert stopped[1].tokens < free[1].tokens
    assert [a.text for a in stopped] == [a.text.partition(stop)[0] for a in free]


def test_greedy_answers_repeat_and_sampled_ones_depend_on_seed_and_place_only(generator: BatchedGenerator) -> None:
    prompts = ids_of(generator)
    torch.manual_seed(1)
    assert generator.generate(prompts, 8) == generator.generate(prompts, 8)
    warm = generator.generate(prompts, 8, temperature=1.0, seed=3)
    torch.manual_seed(2)
    assert warm[:1] == generator.generate(prompts[:1], 8, temperature=1.0, seed=3)
    assert warm != generator.generate(prompts, 8, temperature=1.0, seed=4)


def test_a_prompt_that_does_not_fit_keeps_its_bos_and_its_end_and_says_what_it_lost() -> None:
    long = generator_of(max_length=16)
    bos = long.bos_token_id
    tokens = [bos, *range(100, 130)]
    answer = long.generate([tokens], 4)[0]
    assert answer.dropped == len(tokens) - 12
    assert long.fit_prompt(tokens, 4).ids == (bos, *tokens[-11:])
    assert answer.text == generator_of().generate([[bos, *tokens[-11:]]], 4)[0].text
    with pytest.raises(ValueError, match="max_length=16 leaves no room"):
        long.generate([tokens], 16)


@pytest.mark.parametrize("mode", ["causal", "prefix"])
def test_the_likelihood_of_an_answer_is_that_of_its_training_row(mode: str) -> None:
    generator = slotted(mode)
    row = generator.format.answer_sequences([LONG], ["There are one and twenty."])[0]
    first = next(i for i, label in enumerate(row.labels) if label >= 0) + 1
    prompt = [token for token in row.tokens[:first] if token >= 0]
    last = max(i for i, label in enumerate(row.labels) if label >= 0) + 1
    answer = list(row.tokens[first : last + 1])
    with torch.no_grad():
        logits = generator.model.logits(generator.model.hidden_states(collate([row])))
    labels = torch.tensor(row.labels)
    expected = -torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
    together = generator.logprobs([(prompt, answer), (prompt, answer[:2]), (prompt, answer[:1])])
    assert generator.logprobs([(prompt, answer)])[0].logprob == pytest.approx(expected, abs=1e-4)
    assert together[0].logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", ["causal", "prefix"])
def test_with_slots_alone_equals_batched_and_the_first_token_is_the_most_likely(mode: str) -> None:
    generator = slotted(mode)
    text = [render_conversation(CHATML, [{"role": "user", "content": text}], eos="") for text in PROMPTS]
    prompts = ids_of(generator, text)
    answers = generator.generate(prompts, 6)
    assert answers == [generator.generate([prompt], 6)[0] for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.text.startswith(generator.tokenizer.decode(most_likely(generator, prompt)))


def test_slots_change_the_answer_stand_before_its_turn_and_are_refused_where_it_is_missing() -> None:
    generator = slotted("causal")
    text = render_conversation(CHATML, [{"role": "user", "content": PROMPTS[0]}], eos="")
    prompt = generator.tokenizer.encode(text)
    header = answer_header(generator.format)
    placed = generator.fit_prompt(prompt, 4).ids
    assert placed == (*prompt[: -len(header)], -1, -2, -3, *header)
    plain = BatchedGenerator(generator.model, generator.format, weights="tiny")
    assert plain.fit_prompt(prompt, 4).ids == tuple(prompt)
    assert plain.identity != generator.identity
    pair = [(prompt, generator.tokenizer.encode("the"))]
    assert plain.logprobs(pair) != generator.logprobs(pair)
    with pytest.raises(ValueError, match="answer's turn"):
        generator.generate(ids_of(generator), 4)


def test_the_written_conversation_has_the_tokens_of_the_training_row() -> None:
    generator = slotted("causal")
    row = generator.format.answer_sequences(["Sort the list"], ["It is sorted"])[0]
    messages = [{"role": "user", "content": "Sort the list"}, {"role": "assistant", "content": "It is sorted"}]
    text = render_conversation(CHATML, messages, eos="", open_turn=False)
    tokens = [token for token in row.tokens if token >= 0]
    assert generator.tokenizer.encode(text) == tokens[: -(len(row.tokens) - row.spans["answer"][1])]
    with pytest.raises(ValueError, match="no turn for role 'tool'"):
        render_conversation(CHATML, [{"role": "tool", "content": ""}], eos="")


def test_impossible_generators_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="use causal or prefix"):
        slotted("bidirectional")
    with pytest.raises(ValueError, match="slots > 0"):
        generator_of(with_slots=True)
    loaded = DECODERS["mistral with a window"].load()
    rows = Format(template=CHATML, tokenizer=loaded.tokenizer, plan=Plan(embed="prefix", generate="prefix"))
    with pytest.raises(ValueError, match="sliding window"):
        BatchedGenerator(UnifiedLM(loaded.model, loaded.tokenizer), rows, weights="tiny")


def test_generation_has_no_dropout_and_leaves_training_as_it_was() -> None:
    generator = generator_of(Tiny(dropout=0.5))
    generator.model.train()
    generator.model.backbone.lm_head.eval()
    prompts = ids_of(generator)
    assert generator.generate(prompts, 8) == generator.generate(prompts, 8) == generator_of().generate(prompts, 8)
    assert generator.model.training and not generator.model.backbone.lm_head.training


def test_in_bfloat16_autocast_the_head_stays_in_float32_and_likelihoods_stay_close(generator: BatchedGenerator) -> None:
    loaded = DECODERS["llama"].load()
    half = BatchedGenerator(UnifiedLM(loaded.model, loaded.tokenizer, autocast=torch.bfloat16), weights="tiny")
    states = torch.randn(3, half.model.width)
    with torch.no_grad(), half.model.autocast_context():
        logits = next_token_logits(half.model, states.bfloat16())
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())
    pairs = [(ids_of(generator)[0], continuation) for continuation in ids_of(generator)]
    for one, other in zip(half.logprobs(pairs), generator.logprobs(pairs), strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=0.05)
    assert half.identity != {**generator.identity, "weights": "tiny"}
