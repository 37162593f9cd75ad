"""The model that methods use: hidden states of a pack, logits of rows, embeddings of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unified_lm.attention.function import ATTENTION_NAME
from unified_lm.attention.kernels import choose_kernel
from unified_lm.attention.layout import COMMON_MODES, Layout, PrefixCache
from unified_lm.losses import head_cross_entropy, token_cross_entropy
from unified_lm.packing import PackedBatch, Sequence, collate
from unified_lm.slots import Slots


class UnifiedLM(nn.Module):
    """A transformers decoder with a language-model head that runs on packs, with optional slots and heads.

    `kernel`: a name of `unified_lm.attention.kernels`, or "auto" (the first that can compute the attention `modes`).
    `autocast`: the compute dtype of the forward (None: the parameters' own). `heads`: a method's small modules on
    single hidden states, by name. `attention_dropout`: replaces the decoder's own rate (None: keep it).
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int = 0,
        slots_start: str = "words",
        kernel: str = "auto",
        autocast: torch.dtype | None = None,
        heads: Mapping[str, nn.Module] | None = None,
        attention_dropout: float | None = None,
        modes: frozenset[str] = frozenset(COMMON_MODES),
    ) -> None:
        super().__init__()
        backbone.set_attn_implementation(ATTENTION_NAME)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.autocast = autocast
        config = backbone.config.get_text_config()
        own = getattr(config, "attention_dropout", 0.0)
        rate = own if attention_dropout is None else attention_dropout
        for module in backbone.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = rate
        self.kernel = choose_kernel(
            kernel,
            modes,
            self.device.type,
            softcap=getattr(config, "attn_logit_softcapping", None) is not None,
            half=(autocast or backbone.dtype) in (torch.bfloat16, torch.float16),
            dropout=bool(rate),
        ).name
        self.heads = nn.ModuleDict(heads or {}).to(self.device)
        self.slots: Slots | None = None
        if slots:
            self.slots = Slots(slots, self.width).to(self.device)
            self.slots.initialize(backbone.get_input_embeddings(), tokenizer, slots_start)

    @property
    def device(self) -> torch.device:
        return self.backbone.get_input_embeddings().weight.device

    @property
    def width(self) -> int:
        return self.backbone.config.get_text_config().hidden_size

    @property
    def vocabulary_size(self) -> int:
        return self.backbone.get_input_embeddings().weight.shape[0]

    @contextmanager
    def autocast_context(self):
        """Run the model's forwards in its compute dtype."""
        on = self.autocast is not None
        with torch.autocast(self.device.type, self.autocast if on else torch.bfloat16, enabled=on):
            yield

    def embed_tokens(self, tokens: Int[Tensor, " T"]) -> Float[Tensor, "T d"]:
        """Return input embeddings; token id -(k + 1) is slot k.

        Raises `ValueError` if the tokens contain slots and the model has none.
        """
        embeddings = self.backbone.get_input_embeddings()(tokens.clamp(min=0))
        if self.slots is None:
            if tokens.numel() and int(tokens.min()) < 0:
                raise ValueError("the tokens hold slots but the model has none; build it with slots=N or use N = 0")
            return embeddings
        return self.slots.insert_slots(embeddings, tokens)

    def hidden_states(self, batch: PackedBatch, prefix_cache: PrefixCache | None = None) -> Float[Tensor, "T d"]:
        """Return the last hidden states (after the final norm) of a pack; sequences do not see each other.

        `prefix_cache`: key/value cache of the shared prefix, if already computed.
        """
        layout = batch.layout
        if batch.shared_prefix:
            if prefix_cache is None:
                prefix_cache = self.compute_prefix_cache(batch.shared_prefix)
            layout = replace(layout, prefix_cache=prefix_cache)
        return self.run_decoder(self.embed_tokens(batch.tokens), batch.positions, layout)

    def compute_prefix_cache(self, tokens: tuple[int, ...]) -> PrefixCache:
        """Compute the keys and values of every layer for the first tokens that many sequences share."""
        batch = collate([Sequence(tokens=tokens)]).to(self.device)
        cache: PrefixCache = {}
        self.run_decoder(self.embed_tokens(batch.tokens), batch.positions, replace(batch.layout, prefix_cache=cache))
        return cache

    def run_decoder(self, embeddings: Float[Tensor, "T d"], positions: Tensor, layout: Layout) -> Float[Tensor, "T d"]:
        """Run the decoder's layers and final norm on input embeddings."""
        with self.autocast_context():
            out = self.backbone.base_model(
                inputs_embeds=embeddings[None],
                position_ids=positions[None],
                attention_mask=embeddings.new_zeros(1, 1, 1, 1),  # 4-D, so transformers builds no T x T mask of its own
                layout=replace(layout, kernel=self.kernel),
                use_cache=False,
            )
        return out.last_hidden_state[0]

    def logits(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n V"]:
        """Return the next-token logits of hidden states, in float32 or wider."""
        with self.autocast_context():
            logits = self.backbone.get_output_embeddings()(rows)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def sum_cross_entropy(self, rows: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """*Sum* of the cross-entropies of `logits(rows)`; a linear head computes few logits at a time."""
        head = self.backbone.get_output_embeddings()
        if type(head) is not nn.Linear:  # an adapter adds to it
            return token_cross_entropy(self.logits(rows), labels)
        return head_cross_entropy(rows, head.weight, labels, bias=head.bias, compute=self.autocast)
