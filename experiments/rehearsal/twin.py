"""Small twins of the papers' decoders: the same architecture and kind of tokenizer, random weights, a tiny width.

A twin is a folder as `hf download` leaves a checkpoint, so that a rehearsal reads it the way a run reads the real one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.rehearsal import rows
from unified_lm.files import cache_dir, create_folder_once, strings_digest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Family:
    """The special tokens of a family's tokenizer, a byte-level BPE, and their roles."""

    specials: Sequence[str]
    eos: str
    bos: str | None = None
    pad: str | None = None
    chatml: bool = False


QWEN = Family(
    specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), eos="<|im_end|>", pad="<|endoftext|>", chatml=True
)
LLAMA3 = Family(
    specials=("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    eos="<|eot_id|>",
    bos="<|begin_of_text|>",
)
MISTRAL = Family(specials=("<unk>", "<s>", "</s>"), eos="</s>", bos="<s>")
FAMILIES = {"Qwen/": QWEN, "meta-llama/": LLAMA3, "mistralai/": MISTRAL}

LAYERS, HIDDEN, HEAD = 2, 64, 16
VOCABULARY = 640
"""Rows of the embedding; the tokenizer has a few less, as those of the real decoders have."""

VERSION = 1
"""Part of a twin's folder: raise it where other weights or another tokenizer would be made of the same id."""


def make_twin(id: str) -> Path:
    """The folder of a decoder's twin, made once; its name ends like the hub id.

    Raises `ValueError` for a decoder whose family or shape is not known.
    """
    if not any(id.startswith(name) for name in FAMILIES):
        raise ValueError(f"no rehearsal for {id}: there are twins of decoders of {', '.join(FAMILIES)} only")
    return create_folder_once(
        cache_dir() / "rehearsal" / f"twins-{VERSION}" / id, lambda folder: write_twin(id, folder)
    )


def write_twin(id: str, folder: Path) -> None:
    import torch  # here: a twin that exists is named without torch, and a config is composed without it
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer(next(family for name, family in FAMILIES.items() if id.startswith(name)))
    config = small_config(id)
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(strings_digest(id)[:8], 16))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def small_config(id: str) -> "PretrainedConfig":
    """The decoder's configuration at a tiny width: what its architecture is beyond sizes stays, such as a tied head."""
    from unified_lm.backbones.shapes import KNOWN

    if id not in KNOWN:
        raise ValueError(f"no rehearsal for {id}: its shape is not in unified_lm/backbones/shapes.py")
    kind, hidden, _, _, heads, kv_heads, head_size, _, tied = KNOWN[id]
    wide = heads * head_size > hidden  # Qwen3-4B: heads are wider together than the states
    return kind(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=max(1, 4 * kv_heads // heads),
        head_dim=HEAD * (2 if wide else 1),
        vocab_size=VOCABULARY,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        **({"sliding_window": None} if kind.model_type == "mistral" else {}),
    )


def make_tokenizer(family: Family) -> "PreTrainedTokenizerFast":
    """A tokenizer learnt from the mirror's words, whose special tokens are the family's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from unified_lm.backbones.base import CHATML

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 16,
        special_tokens=list(family.specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(rows.texts("tokenizer", 400), trainer)
    if family.bos is not None:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A",
            pair=f"{family.bos} $A {family.bos} $B",
            special_tokens=[(family.bos, bpe.token_to_id(family.bos))],
        )
    named = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **{name: token for name, token in named.items() if token is not None},
        extra_special_tokens=[token for token in family.specials if token not in named.values()],
        **({"chat_template": CHATML} if family.chatml else {}),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
