"""Our generator behind lm-eval's model interface.

It imports lm_eval, which takes seconds: import this module where a suite runs, not before.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedTokenizerBase

from evals.generation.tasks import Style
from unified_lm.inference.decoding import Likelihood
from unified_lm.inference.generate import BatchedGenerator, Generated
from unified_lm.prompts.conversation import conversation_tokens, render_conversation

log = logging.getLogger(__name__)

SUPPORTED_SETTINGS = frozenset({"until", "max_gen_toks", "do_sample", "temperature"})
"""The generation settings of tasks that our generator obeys; any other is refused."""


class CountedLikelihood(Likelihood):
    """A likelihood that knows how many tokens it was summed over, and still is the pair that lm-eval expects."""

    tokens: int


class LiveLM(TemplateLM):
    """A live model. `style` is how conversations are written: by the tokenizer's template or like training rows.

    Of what lm-eval drops it keeps `answers`, by (task, document), and how many prompts lost tokens on their left
    (`prompts_cut` of `prompts`). `first_ids` holds the first four ids of the first request of each kind.
    """

    def __init__(self, generator: BatchedGenerator, *, style: Style) -> None:
        super().__init__()
        self.generator = generator
        self.style = style
        self.answers: dict[tuple[str, int], list[Generated]] = defaultdict(list)
        self.prompts = self.prompts_cut = 0
        self.first_ids: dict[str, list[int]] = {}
        self._opened: dict[str, tuple[list[int], str]] = {}  # conversation -> ids of its turns, header of the answer's

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.generator.tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What an empty context becomes: BOS, and the end of text for tokenizers without one."""
        bos = self.generator.bos_token_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """Token ids with exactly one BOS in front; with add_special_tokens=False the bare ids."""
        ids = self.tokenizer.encode(string, add_special_tokens=False)
        return ids if add_special_tokens is False else self._with_bos(ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.generator.bos_token_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def _open_turn_ids(self, context: str, answer: str = "") -> list[int]:
        """The ids of a conversation whose answer's turn was opened, and of an answer, as a training row has them."""
        turns, header = self._opened[context]
        return self._with_bos(turns + self.tok_encode(header + answer, add_special_tokens=False))

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. Without a generation prompt its last message stays unfinished.

        Raises ValueError where the style needs a template that tokenizer or generator do not have.
        """
        opened: tuple[list[int], str] | None = None
        if self.style == "rows" and self.generator.format is not None:
            form = self.generator.format
            filled = all(message["content"] for message in chat_history)  # no row has an empty turn
            if add_generation_prompt and filled:
                opened = conversation_tokens(form, chat_history), form.template.answer.partition("{text}")[0]
            text = render_conversation(
                form.template,
                chat_history,
                eos=self.tokenizer.eos_token,
                open_turn=add_generation_prompt,
            )
        elif self.style == "tokenizer" and self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                list(chat_history),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        else:
            has = {"rows": "the generator has no format of rows", "tokenizer": "the tokenizer has no chat template"}
            raise ValueError(
                f"template={self.style} cannot write a conversation: {has.get(self.style, 'it writes none')}; "
                "use another of none, tokenizer, rows"
            )
        if add_generation_prompt:
            self._opened[text] = opened or ([], text)
        return text

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval splits it, but for a conversation: there the newline behind the answer's header stays context.

        lm-eval moves white space at a context's end into the continuation, where it would be scored as if the answer
        began with it.
        """
        if context in self._opened:
            whole, prompt = self._open_turn_ids(context, continuation), self._open_turn_ids(context)
            if whole[: len(prompt)] == prompt:
                return prompt, whole[len(prompt) :]
        return super()._encode_pair(context, continuation)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **ignored: Any
    ) -> list[tuple[float, bool]]:
        for (_, continuation), ids, scored in requests:
            if not scored:
                raise ValueError(f"the continuation {continuation!r} has no tokens of its own, so it has no likelihood")
            self._check_prompt(ids, "loglikelihood", len(scored) - 1)
        return self._score_pairs([(ids, scored) for _, ids, scored in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihoods of whole texts in disjoint windows, each behind the token before it; the first behind BOS."""
        totals = []
        for request in requests:
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.generator.max_length, context_len=1)
            parts = self._score_pairs([make_disjoint_window(window) for window in windows])
            totals.append(sum(part[0] for part in parts))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        alike: dict[tuple[int, tuple[str, ...], float], list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            alike[parse_generation_settings(request.args[1])].append(i)
        texts: dict[int, str] = {}
        for (budget, stop, temperature), members in alike.items():
            contexts = [requests[i].args[0] for i in members]
            prompts = [
                self._open_turn_ids(text) if text in self._opened else self.tok_encode(text) for text in contexts
            ]
            for prompt in prompts:
                self._check_prompt(prompt, "generate", budget)
            for i, answer in zip(members, self.generator.generate(prompts, budget, stop, temperature), strict=True):
                self.answers[requests[i].task_name, requests[i].doc_id].append(answer)
                texts[i] = answer.text
        return [texts[i] for i in range(len(requests))]

    def _score_pairs(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        results = []
        for (_, scored), likelihood in zip(pairs, self.generator.logprobs(pairs), strict=True):
            counted = CountedLikelihood(*likelihood)
            counted.tokens = len(scored)
            results.append(counted)
        return results

    def _check_prompt(self, prompt: list[int], kind: str, answer: int) -> None:
        """Count a prompt of a request, and make sure that it begins with exactly one BOS."""
        bos = self.generator.bos_token_id
        if kind not in self.first_ids:
            self.first_ids[kind] = prompt[:4]
            log.info("the first %s request begins with the ids %s", kind, prompt[:4])
        if bos is not None and (prompt[:1] != [bos] or prompt[1:2] == [bos]):
            raise ValueError(f"a {kind} request begins with the ids {prompt[:4]} instead of exactly one BOS ({bos})")
        self.prompts += 1
        self.prompts_cut += bool(self.generator.count_overflow(len(prompt), answer))


def parse_generation_settings(settings: Mapping[str, Any]) -> tuple[int, tuple[str, ...], float]:
    """(budget, stop strings, temperature) of a task's generation settings.

    Raises ValueError for settings without a budget, and for any that the generator does not know.
    """
    if "max_gen_toks" not in settings:
        raise ValueError("a generation request without max_gen_toks has no budget; pin the task's budget")
    normal = normalize_gen_kwargs(dict(settings))
    unknown = sorted(set(normal) - SUPPORTED_SETTINGS)
    if unknown:
        raise ValueError(
            f"generation settings {unknown} are not supported; a task may set {sorted(SUPPORTED_SETTINGS)}"
        )
    return normal["max_gen_toks"], tuple(as_list(normal["until"])), float(normal.get("temperature", 0.0))


def as_list(values: str | Iterable[str]) -> list[str]:
    return [values] if isinstance(values, str) else list(values)
