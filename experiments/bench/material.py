"""What is measured on: a random decoder of 256 x 6, real texts in three length sets, and the peer on the same weights.

The decoder is small so that a CPU finishes in minutes; lengths come from real documentation, since padding and packing
are what is compared.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unified_lm.attention import Plan
from unified_lm.backbones.base import read_tokenizer, without_progress_bars
from unified_lm.backbones.smollm2 import SmolLM2
from unified_lm.data.packaged.source import PackagedText
from unified_lm.data.rows import TrainingRow
from unified_lm.inference.encode import Encoder
from unified_lm.model import UnifiedLM
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PLAIN = Template(name="plain", query="{instruction}{text}", document="{text}", answer="{text}", bos=False)
CAUSAL = Plan(embed="causal", generate="causal")
LONGEST = 2048


@dataclass(frozen=True, kw_only=True)
class Material:
    """Everything that the measurements share, made once. `size`: a divisor of the sets' sizes (1 is the full bench)."""

    size: int = 1
    hidden: int = 256
    layers: int = 6

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return read_tokenizer(SmolLM2(dtype="float32").converted_folder())

    @cached_property
    def decoder(self) -> LlamaForCausalLM:
        """Random Llama: 256 wide, 6 layers, 4 heads of 64, float32, tied."""
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=self.hidden,
            intermediate_size=4 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LONGEST,
            tie_word_embeddings=True,
            initializer_range=0.05,
            pad_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return LlamaForCausalLM(config).eval()

    def build_our_model(self) -> UnifiedLM:
        """The decoder on packs, its weights its own."""
        return UnifiedLM(copy.deepcopy(self.decoder), self.tokenizer)

    def build_format(self, slots: int = 0) -> Format:
        return Format(
            template=PLAIN,
            tokenizer=self.tokenizer,
            plan=CAUSAL,
            slots=slots,
            document_slots=min(1, slots),
            query_length=LONGEST,
            document_length=LONGEST,
        )

    def build_encoder(self, model: UnifiedLM, budget: int, **options: Any) -> Encoder:
        return Encoder(model=model, format=self.build_format(), readout="mean", budget=budget, **options)

    def build_peer(self) -> SentenceTransformer:
        """sentence-transformers over a copy of the decoder: mean pooling of the text, unit vectors, right padding.

        Right padding is its best case: under causal attention it needs no position ids of its own. The chat template is
        taken away, since sentence-transformers 6 would wrap every text in it.
        """
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.padding_side, tokenizer.chat_template = "right", None
        with tempfile.TemporaryDirectory(prefix="bench_peer_") as folder, without_progress_bars():
            self.decoder.model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            body = Transformer(folder, max_seq_length=LONGEST)
        pooling = Pooling(self.hidden, pooling_mode="mean", include_prompt=False)
        return SentenceTransformer(modules=[body, pooling, Normalize()], device="cpu")

    @cached_property
    def pairs(self) -> list[TrainingRow]:
        """Descriptions and the code they describe, with explanations as answers."""
        return list(PackagedText(kind="triples", split="held_out").rows())

    @cached_property
    def sets(self) -> dict[str, list[str]]:
        """Texts by length set: "passages", functions as they are; "long tail", one to twelve of them joined, of which
        some are cut at 2048 tokens; "queries", one-line descriptions."""
        rows = list(PackagedText(kind="pairs", split="held_out").rows())
        code = list(dict.fromkeys(row.positive for row in rows))
        queries = list(dict.fromkeys(row.query for row in rows))
        draw = torch.Generator().manual_seed(0)
        numbers = torch.empty(64).log_normal_(0.0, 1.0, generator=draw).round().clamp(1, 12).int().tolist()
        joined, at = [], 160
        for number in numbers:
            joined.append("\n".join(code[at : at + number]))
            at += number
        sets = {"passages": code[:160], "long tail": joined, "queries": queries[:600]}
        return {name: texts[: len(texts) // self.size] for name, texts in sets.items()}
