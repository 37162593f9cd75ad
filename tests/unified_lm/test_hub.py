"""A checkpoint is read as it is and pinned to what it is, or refused in a sentence that says what to do."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from unified_lm.backbones import Hub, Tiny

COMMIT = "b968826d9c46dd6066d109eabc6255188de91218"


@pytest.fixture
def folder(tmp_path, tiny) -> Path:
    """A checkpoint of the tiny decoder as transformers writes it."""
    tiny.model.save_pretrained(tmp_path / "checkpoint")
    tiny.tokenizer.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def edit(path: Path, **changes) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_local_folder_computes_what_was_saved(folder, tiny):
    loaded = Hub(id=str(folder), dtype="float32").load()
    tokens = torch.tensor([tiny.tokenizer.encode("the same 123 tokens")])
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens).logits, tiny.model(tokens).logits)
    assert loaded.tokenizer.encode("the same 123 tokens") == tokens[0].tolist()
    assert (loaded.logits_shift, loaded.mask_token_id) == (1, None)


def test_a_subfolder_is_a_checkpoint_of_its_own(folder, tiny):
    loaded = Hub(id=str(folder.parent), subfolder=folder.name, dtype="float32").load()
    assert torch.equal(loaded.model.lm_head.weight, tiny.model.lm_head.weight)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_asked_for_wins_over_the_checkpoint(folder, dtype):
    model = Hub(id=str(folder), dtype=dtype).load().model
    assert {str(parameter.dtype) for parameter in model.parameters()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:12], COMMIT.upper()])
def test_a_name_that_can_move_is_no_revision(revision):
    with pytest.raises(ValueError, match=re.escape("40 hexadecimal digits")):
        Hub(id="Qwen/Qwen3-8B", revision=revision, dtype="float32")


def test_a_local_folder_has_no_revision(folder):
    with pytest.raises(ValueError, match=re.escape("backbone.revision=null")):
        Hub(id=str(folder), revision=COMMIT, dtype="float32")


def test_a_folder_that_is_not_there_is_not_taken_for_a_hub_id():
    with pytest.raises(ValueError, match="no such folder"):
        Hub(id="./not/here", dtype="float32")


def test_without_the_hub_the_error_says_how_to_bring_the_files(tmp_path):
    with pytest.raises(ValueError, match=f"hf download nobody/nothing --revision {COMMIT}"):
        Hub(id="nobody/nothing", revision=COMMIT, dtype="float32").load()


def test_a_hub_id_is_identified_without_the_hub():
    one = Hub(id="Qwen/Qwen3-8B", revision=COMMIT, dtype="float32")
    prints = {
        one.fingerprint(),
        Hub(id="Qwen/Qwen3-8B", revision=COMMIT, dtype="bfloat16").fingerprint(),
        Hub(id="Qwen/Qwen3-8B", revision="0" * 40, dtype="float32").fingerprint(),
        Hub(id="Qwen/Qwen3-4B", revision=COMMIT, dtype="float32").fingerprint(),
    }
    assert len(prints) == 4


def test_a_local_folder_is_identified_by_its_content(folder, tmp_path):
    first = Hub(id=str(folder), dtype="float32").fingerprint()
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert Hub(id=str(moved), dtype="float32").fingerprint() == first
    (moved / "README.md").write_text("notes")
    assert Hub(id=str(moved), dtype="float32").fingerprint() == first
    edit(moved / "config.json", rms_norm_eps=1e-3)
    assert Hub(id=str(moved), dtype="float32").fingerprint() != first
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert Hub(id=str(folder), dtype="float32").fingerprint() != first


def test_weights_that_are_missing_are_not_drawn_at_random(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=re.escape("model.layers.1.mlp.up_proj.weight")):
        Hub(id=str(folder), dtype="float32").load()


def test_weights_that_have_no_place_are_not_dropped(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.ones(64)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=re.escape("q_proj.bias")):
        Hub(id=str(folder), dtype="float32").load()


def test_pickled_weights_are_never_opened(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="never opened"):
        Hub(id=str(folder), dtype="float32").load()


def test_a_checkpoint_that_brings_code_is_refused_and_its_code_not_run(folder):
    edit(folder / "config.json", model_type="novel", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    (folder / "code.py").write_text("raise SystemExit('run')")
    with pytest.raises(ValueError, match=r"model_type=novel.*never run"):
        Hub(id=str(folder), dtype="float32").load()


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=re.escape("config.json")):
        Hub(id=str(tmp_path), dtype="float32").load()


def test_a_missing_padding_token_is_the_end_token_and_no_row_is_added(folder):
    edit(folder / "tokenizer_config.json", pad_token=None)
    loaded = Hub(id=str(folder), dtype="float32").load()
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == loaded.model.config.pad_token_id
    assert loaded.model.get_input_embeddings().num_embeddings == len(loaded.tokenizer) == 512


def test_a_declared_padding_token_is_kept(folder):
    edit(folder / "tokenizer_config.json", pad_token="<unused_1>")
    loaded = Hub(id=str(folder), dtype="float32").load()
    assert loaded.tokenizer.pad_token == "<unused_1>"
    assert loaded.model.generation_config.pad_token_id == loaded.tokenizer.pad_token_id


def test_a_tokenizer_without_an_end_token_is_refused(folder):
    edit(folder / "tokenizer_config.json", eos_token=None, pad_token=None)
    with pytest.raises(ValueError, match="no end token"):
        Hub(id=str(folder), dtype="float32").load()


def test_tokens_without_a_vector_are_refused(folder):
    Tiny(vocab=500).load().model.save_pretrained(folder)
    with pytest.raises(ValueError, match="512 tokens and the model 500"):
        Hub(id=str(folder), dtype="float32").load()
