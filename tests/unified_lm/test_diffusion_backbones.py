"""Dream and LLaDA checkpoints, in the layout of their authors, compute what transformers' own decoders compute."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from unified_lm.backbones import Hub, diffusion

MASK = 6  # <unused_1> of the tiny tokenizer
ROPE = {"rope_type": "default", "rope_theta": 500.0}
DREAM = {
    "architectures": ["DreamModel"],
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
    "model_type": "Dream",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "mask_token_id": MASK,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-4,
    "rope_scaling": None,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 520,
}
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_dropout": 0.0,
    "block_type": "llama",
    "d_model": 32,
    "embedding_size": 520,
    "include_bias": False,
    "include_qkv_bias": False,
    "layer_norm_type": "rms",
    "mask_token_id": MASK,
    "max_sequence_length": 128,
    "mlp_hidden_size": 48,
    "n_heads": 4,
    "n_kv_heads": 2,
    "n_layers": 2,
    "rms_norm_eps": 1e-4,
    "rope": True,
    "rope_theta": 500.0,
    "scale_logits": False,
    "vocab_size": 512,
    "weight_tying": False,
}
# What LLaDA's authors call the tensors of a layer, beside Llama's names.
LLADA_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


def twin(family: str):
    """The same small decoder built directly, with every weight drawn (norms and biases too)."""
    shape = {
        "vocab_size": 520,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-4,
        "rope_parameters": ROPE,
        "tie_word_embeddings": False,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**shape)) if family == "Dream" else LlamaForCausalLM(LlamaConfig(**shape))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def in_llada_words(name: str) -> str:
    outer = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
    stem = name.removesuffix(".weight")
    if stem in outer:
        return f"model.transformer.{outer[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"model.transformer.blocks.{layer}.{LLADA_TENSORS[rest]}.weight"


def write(folder: Path, family: str, tokenizer, **changes) -> Path:
    """A checkpoint in two shards as its authors publish it; a change to None leaves the field out."""
    facts = {**(DREAM if family == "Dream" else LLADA), **changes}
    kept = {name: value for name, value in facts.items() if name not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    weights = dict(twin(family).state_dict())
    if family != "Dream":
        weights = {in_llada_words(name): value for name, value in weights.items()}
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: weights[name] for name in part}, folder / f"model-0000{number}-of-00002.safetensors")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("family", "shift"), [("Dream", 1), ("LLaDA", 0)])
def test_it_computes_what_its_twin_computes(family, shift, tmp_path, tiny):
    loaded = Hub(id=str(write(tmp_path, family, tiny.tokenizer)), dtype="float32").load()
    tokens = torch.arange(9, 60)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens).logits, twin(family)(tokens).logits)
    assert (loaded.logits_shift, loaded.mask_token_id) == (shift, MASK)
    assert loaded.tokenizer.encode("words and 12") == tiny.tokenizer.encode("words and 12")
    assert loaded.model.lm_head.weight is not loaded.model.model.embed_tokens.weight


@pytest.mark.parametrize("family", ["Dream", "LLaDA"])
def test_it_is_held_in_the_dtype_asked_for(family, tmp_path, tiny):
    model = Hub(id=str(write(tmp_path, family, tiny.tokenizer)), dtype="bfloat16").load().model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


USED_BY_DREAM = sorted(set(DREAM) - {"architectures", "auto_map", "model_type", "rope_scaling", "use_sliding_window"})
USED_BY_LLADA = sorted(
    set(LLADA) - {"architectures", "auto_map", "model_type", "alibi", "attention_dropout", "scale_logits", "vocab_size"}
)


@pytest.mark.parametrize(
    ("family", "field"), [*(("Dream", name) for name in USED_BY_DREAM), *(("LLaDA", name) for name in USED_BY_LLADA)]
)
def test_a_missing_field_is_named_and_never_assumed(family, field, tmp_path, tiny):
    write(tmp_path, family, tiny.tokenizer, **{field: None})
    with pytest.raises(ValueError, match=field):
        Hub(id=str(tmp_path), dtype="float32").load()


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("Dream", "rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("Dream", "use_sliding_window", True),
        ("LLaDA", "block_type", "sequential"),
        ("LLaDA", "layer_norm_type", "low_precision"),
        ("LLaDA", "activation_type", "swiglu"),
        ("LLaDA", "include_bias", True),
        ("LLaDA", "include_qkv_bias", True),
        ("LLaDA", "alibi", True),
        ("LLaDA", "scale_logits", True),
        ("LLaDA", "residual_dropout", 0.1),
    ],
)
def test_a_feature_that_the_twin_lacks_is_refused(family, field, value, tmp_path, tiny):
    write(tmp_path, family, tiny.tokenizer, **{field: value})
    with pytest.raises(ValueError, match=field):
        Hub(id=str(tmp_path), dtype="float32").load()


@pytest.mark.parametrize("family", ["Dream", "LLaDA"])
def test_a_mask_token_that_the_tokenizer_lacks_is_refused(family, tmp_path, tiny):
    write(tmp_path, family, tiny.tokenizer, mask_token_id=515)
    with pytest.raises(ValueError, match="mask_token_id=515"):
        Hub(id=str(tmp_path), dtype="float32").load()


def test_dreams_tokenizer_is_read_from_its_word_list_and_merges(tmp_path, tiny):
    """Dream publishes vocab.json and merges.txt with a tokenizer class of its own code, and no tokenizer.json."""
    write(tmp_path, "Dream", tiny.tokenizer)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    added = {"512": "<|beginoftext|>", "513": "<|mask|>"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "DreamTokenizer",
                "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
                "added_tokens_decoder": {id: {"content": text, "special": True} for id, text in added.items()},
                "eos_token": "<|im_end|>",
                "pad_token": "<|im_end|>",
                "unk_token": "<|im_end|>",
                "mask_token": "<|mask|>",
            }
        )
    )
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "mask_token_id": 513}))
    loaded = Hub(id=str(tmp_path), dtype="float32").load()
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.mask_token_id) == "<|mask|>"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("words, and 12 more")) == "words, and 12 more"
    assert loaded.tokenizer.encode("the")[0] == tiny.tokenizer.encode("the")[0]


def test_another_transformers_is_refused_before_anything_is_read(monkeypatch, tmp_path, tiny):
    write(tmp_path, "Dream", tiny.tokenizer)
    monkeypatch.setattr(diffusion.transformers, "__version__", "6.0.0")
    with pytest.raises(ValueError, match=r"6\.0\.0"):
        Hub(id=str(tmp_path), dtype="float32").load()


def test_the_checked_range_is_the_one_that_is_installed_by_default():
    pins = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    stated = next(line.strip(' ",') for line in pins.splitlines() if line.strip().startswith('"transformers'))
    assert diffusion.SpecifierSet(stated.removeprefix("transformers")) == diffusion.TRANSFORMERS
