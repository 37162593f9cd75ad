"""Every backbone is what its config says: explicit dtype, tied as declared, known tokens, identified cheaply."""

import ast
import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from unified_lm.backbones import Backbone, Hub, LoadedBackbone, Tiny

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma3")
TEXTS = ("", "Plain words.", "naïve 日本 🙂\n\ttabs  and   spaces ", "x=12345; y[0] -= 6.78e-9")


def logits(loaded: LoadedBackbone, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tiny_decoder_is_a_function_of_its_settings(architecture):
    tokens = list(range(9, 40))
    before = torch.random.get_rng_state()
    first = logits(Tiny(architecture=architecture).load(), tokens)
    assert torch.equal(torch.random.get_rng_state(), before), "loading must not draw from the global generator"
    torch.manual_seed(7)
    assert torch.equal(logits(Tiny(architecture=architecture).load(), tokens), first)
    assert not torch.equal(logits(Tiny(architecture=architecture, seed=1).load(), tokens), first)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_tie_and_dtype_survive_save_and_load(architecture, tied, tmp_path):
    loaded = Tiny(architecture=architecture, tied=tied, dtype="bfloat16").load()
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    again = Hub(id=str(tmp_path), dtype="bfloat16").load()
    for model in (loaded.model, again.model):
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert model.config.tie_word_embeddings == tied
        assert not model.training
    assert torch.equal(logits(again, [9, 10, 11]), logits(loaded, [9, 10, 11]))
    assert again.tokenizer.backend_tokenizer.to_str() == loaded.tokenizer.backend_tokenizer.to_str()
    assert again.tokenizer.chat_template == loaded.tokenizer.chat_template


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "llama"])
def test_a_sliding_window_hides_far_tokens_from_the_layers_that_have_it(architecture):
    """Two layers of width 4 see at most 7 tokens back; only mistral has no full layer at the end."""
    loaded = Tiny(architecture=architecture, sliding_window=4).load()
    tokens = list(range(20, 40))
    changed = [21, *tokens[1:]]
    last_moves = not torch.allclose(logits(loaded, tokens)[-1], logits(loaded, changed)[-1], atol=1e-7)
    assert last_moves == (architecture != "mistral")


@pytest.mark.parametrize("text", TEXTS)
def test_every_string_round_trips_and_digits_stand_alone(tiny, text):
    assert tiny.tokenizer.decode(tiny.tokenizer.encode(text)) == text
    pieces = tiny.tokenizer.convert_ids_to_tokens(tiny.tokenizer.encode(text))
    assert all(len(piece.lstrip("Ġ")) == 1 for piece in pieces if any(letter.isdigit() for letter in piece))


def test_special_tokens_of_the_tiny_tokenizer_are_what_the_model_is_told(tiny):
    tokenizer, config = tiny.tokenizer, tiny.model.config
    assert len(tokenizer) == config.vocab_size == tiny.model.get_input_embeddings().num_embeddings == 512
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    for role in ("bos", "eos", "pad"):
        assert getattr(config, f"{role}_token_id") == getattr(tokenizer, f"{role}_token_id")
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]
    assert all(len(tokenizer.encode(token)) == 1 for token in tokenizer.all_special_tokens)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("reloaded", [False, True])
def test_the_end_token_learns_although_it_pads(architecture, reloaded, tmp_path):
    """An embedding with a padding index gives that row no gradient, and a fresh one has zeros there."""
    loaded = Tiny(architecture=architecture, tied=False).load()
    if reloaded:
        loaded.model.save_pretrained(tmp_path)
        loaded.tokenizer.save_pretrained(tmp_path)
        loaded = Hub(id=str(tmp_path), dtype="float32").load()
    end = loaded.tokenizer.eos_token_id
    assert loaded.tokenizer.pad_token_id == end
    loaded.model(torch.tensor([[20, end, 21]]), labels=torch.tensor([[20, end, 21]])).loss.backward()
    rows = loaded.model.get_input_embeddings().weight
    assert rows[end].abs().min() > 0
    assert rows.grad[end].abs().max() > 0


def test_encoding_adds_no_token_of_its_own(tiny):
    assert tiny.tokenizer.encode("words") == tiny.tokenizer.encode("words", add_special_tokens=False)


def test_a_chat_starts_each_turn_once_and_ends_it_once(tiny):
    ids = tiny.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], return_dict=False)
    assert ids[0] == tiny.tokenizer.bos_token_id
    assert ids.count(tiny.tokenizer.bos_token_id) == ids.count(tiny.tokenizer.eos_token_id) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"architecture": "gpt9"}, "gpt9"),
        ({"heads": 5}, "heads=5"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads=3"),
        ({"sliding_window": 8}, "sliding_window=8"),
        ({"dtype": "fp8"}, "fp8"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, named):
    with pytest.raises(ValueError, match=named):
        Tiny(**settings)


def test_a_vocabulary_that_the_text_cannot_give_is_refused():
    with pytest.raises(ValueError, match="vocab=5000"):
        Tiny(vocab=5000).load()


def test_every_setting_is_part_of_the_fingerprint():
    base = Tiny(architecture="qwen3")
    others = {
        "architecture": "qwen2",
        "layers": 3,
        "hidden": 32,
        "heads": 2,
        "kv_heads": 1,
        "vocab": 500,
        "positions": 128,
        "seed": 1,
        "sliding_window": 8,
        "dropout": 0.1,
        "tied": False,
        "dtype": "bfloat16",
    }
    assert set(others) == set(base.__dataclass_fields__)
    prints = {replace(base, **{name: value}).fingerprint() for name, value in others.items()}
    assert len(prints | {base.fingerprint()}) == len(others) + 1
    assert base.fingerprint() == Tiny(architecture="qwen3").fingerprint()


DECODERS = {
    path.stem: settings
    for path in sorted((ROOT / "conf" / "backbone").glob("*.yaml"))
    if (settings := yaml.safe_load(path.read_text()))["_target_"].startswith("unified_lm.backbones.")
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_in_conf_is_a_backbone_at_a_fixed_commit(name):
    settings = dict(DECODERS[name])
    module, _, target = settings.pop("_target_").rpartition(".")
    if settings.get("id") == "???":  # the user names it
        settings["id"], settings["revision"] = "organisation/name", "0" * 40
    backbone = getattr(importlib.import_module(module), target)(**settings)
    assert isinstance(backbone, Backbone)
    if isinstance(backbone, Hub):
        assert len(backbone.fingerprint()) == 16


def calls(attribute: str):
    """Every call of a method of that name in the project, with the source it stands in."""
    for package in ("unified_lm", "evals", "experiments"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute:
                    yield path.relative_to(ROOT), node


def test_every_model_is_loaded_with_an_explicit_dtype():
    """transformers' default dtype changed between majors: an old number would not come back."""
    seen = 0
    for path, call in calls("from_pretrained"):
        of = ast.unparse(call.func.value)
        if "tokenizer" in of.lower() or "config" in of.lower():
            continue
        seen += 1
        assert "dtype" in {keyword.arg for keyword in call.keywords}, f"{path}:{call.lineno} loads {of} without dtype="
    assert seen, "the search finds no load at all"


def test_no_code_of_a_checkpoint_is_ever_trusted():
    for package in ("unified_lm", "evals", "experiments", "conf"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".yaml"):
                assert "trust_remote_code=True" not in path.read_text().replace(" ", "").replace(":", "="), path
