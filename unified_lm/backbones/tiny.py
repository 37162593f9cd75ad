"""A small random decoder with its own tokenizer: it loads in milliseconds and runs the code of a real backbone."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from unified_lm.backbones.base import CHATML, LoadedBackbone, torch_dtype
from unified_lm.files import json_digest

ARCHITECTURES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gemma3": Gemma3TextConfig,
}
SPECIAL_TOKENS = (
    "<unused_0>",  # id 0 is nobody's, so that a forgotten zero is not taken for a real token
    "<|im_start|>",
    "<|im_end|>",
    "<|user|>",
    "<|assistant|>",
    "<|embed|>",
    "<unused_1>",
    "<unused_2>",
    "<unused_3>",
)
TOKENIZER_TEXT = """
A language model reads a text from left to right and predicts the next token, one position after the other. An
embedding model reads the same text and returns one vector, so that texts with a similar meaning lie close together.
A query asks a question; a document may answer it. The retrieval system ranks every document by its similarity with
the query and shows the best ten. Write a short answer, explain why it is right, and give an example. What is the
capital of France? How many numbers are there between one and twenty? Sort the list, return the first element and
raise an error when it is empty. Summarize this sentence: the weather was cold, but the children played outside
until the evening. Translate the words "water", "bread" and "light". The function takes two arguments, computes
their sum and prints the result. Given a claim, find documents that support or refute the claim. Learning rate,
batch size, temperature, attention, layer, head, weight.
"""


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Random weights drawn from ``seed`` in one of transformers' own decoder classes.

    ``dropout`` is the attention dropout, the only one that these decoders have. ``sliding_window`` limits the attention
    of every layer of mistral and of all but the last of the others; llama has none.
    """

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 512
    positions: int = 4096
    seed: int = 0
    sliding_window: int | None = None
    dropout: int | float = 0.0
    tied: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"backbone.architecture={self.architecture} is not known; use one of {sorted(ARCHITECTURES)}"
            )
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"backbone.heads={self.heads} must divide backbone.hidden={self.hidden} "
                f"and be a multiple of backbone.kv_heads={self.kv_heads}"
            )
        if self.sliding_window is not None and self.architecture == "llama":
            raise ValueError(
                f"backbone.sliding_window={self.sliding_window} with backbone.architecture=llama: llama has no sliding "
                "window; use null, or another architecture"
            )
        torch_dtype(self.dtype)

    @property
    def name(self) -> str:
        return f"tiny-{self.architecture}"

    def fingerprint(self) -> str:
        return json_digest(
            {"backbone": "tiny", "tokenizer_text": TOKENIZER_TEXT, "specials": SPECIAL_TOKENS, **asdict(self)}
        )

    def load(self) -> LoadedBackbone:
        tokenizer = train_tiny_tokenizer(self.vocab)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = AutoModelForCausalLM.from_config(self.config(tokenizer), dtype=torch_dtype(self.dtype))
        # Set only now: a decoder built with a padding token has a row of zeros for it, here the end token's.
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        return LoadedBackbone(model=model.eval(), tokenizer=tokenizer)

    def config(self, tokenizer: PreTrainedTokenizerFast | None = None) -> PretrainedConfig:
        """transformers' configuration of this decoder; `tokenizer`: the one of these settings, where it is at hand."""
        tokenizer = tokenizer or train_tiny_tokenizer(self.vocab)
        head_dim = self.hidden // self.heads
        return ARCHITECTURES[self.architecture](
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=2 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=head_dim,
            max_position_embeddings=self.positions,
            attention_dropout=self.dropout,
            tie_word_embeddings=self.tied,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
            # Five times the usual spread: attention is then far from uniform, so that a wrong mask shows in the states.
            initializer_range=0.1,
            **self._window_settings(),
            **({"query_pre_attn_scalar": head_dim} if self.architecture == "gemma3" else {}),
        )

    def _window_settings(self) -> dict[str, Any]:
        """Return the sliding-window settings under the keys of the architecture's configuration class."""
        if self.architecture == "llama":
            return {}
        if self.architecture == "mistral":
            return {"sliding_window": self.sliding_window}
        kinds = ["full_attention"] * self.layers
        if self.sliding_window is not None:
            kinds[:-1] = ["sliding_attention"] * (self.layers - 1)
        if self.architecture == "gemma3":  # its masks are built from a width even where no layer uses one
            return {"sliding_window": self.sliding_window or self.positions, "layer_types": kinds}
        return {
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "layer_types": kinds,
        }


def train_tiny_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of exactly ``vocab`` ids on the text above; every string round-trips."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(TOKENIZER_TEXT.splitlines(), trainer)
    if bpe.get_vocab_size() != vocab:
        raise ValueError(
            f"backbone.vocab={vocab} cannot be reached by the built-in text, which gives {bpe.get_vocab_size()} ids; "
            "use 512 or a number a little below or above"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        extra_special_tokens=[token for token in SPECIAL_TOKENS if not token.startswith("<|im_")],
        chat_template=CHATML,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
