"""Model folders of other people: whatever they are called, and whatever is in them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from experiments.encode import main as encode
from experiments.runs.resolve_model import identify_foreign_model
from unified_lm.backbones import Hub, Tiny

NAMES = ["with blanks", "a=b", "a,b", "it's", 'a"b', "[a]", "{a}", "${name}", "\\${a}", "${oc.env:HOME}", "模型", "é",
         "a:b", "(x)", "~a", "a'${b}\\", "null", "1e5", "true", "$", "%s", "#a", "@b"]  # fmt: skip
CHARACTERS = st.text(st.sampled_from("aé模 '\"\\${}[](),:=~@#%.-_0"), min_size=1, max_size=12)


def identified(folder: Path) -> str:
    return identify_foreign_model(str(folder), []).config["backbone"]["id"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_any_name_can_be_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert identified(folder) == str(folder)


@settings(max_examples=40, deadline=None)
@given(CHARACTERS.filter(lambda name: name not in (".", "..")))
def test_a_folder_of_any_characters_can_be_named(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("names") / name
    folder.mkdir()
    assert identified(folder) == str(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    loaded = Tiny().load()
    folder = tmp_path / "model ${x}, 'y' = 模型"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def encoded(model: Path) -> np.ndarray:
    texts, vectors = model.parent / "texts.txt", model.parent / "vectors.npy"
    texts.write_text("one text\nanother\n")
    assert encode([f"model={model}", f"input={texts}", f"output={vectors}"]) == 0
    return np.load(vectors)


def test_a_folder_of_any_name_is_encoded_with(model: Path) -> None:
    assert np.isfinite(encoded(model)).all()


def reweighed(model: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def pickled(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()


def reshaped(model: Path) -> None:
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(facts | {"hidden_size": 2 * facts["hidden_size"]}))


def nan(weights: dict[str, torch.Tensor]) -> None:
    next(iter(weights.values())).view(-1)[0] = float("nan")


def cut_to(model: Path, size: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights are cut": lambda model: cut_to(model, 5000),
    "weights are cut in their header": lambda model: cut_to(model, 20),
    "weights are empty": lambda model: cut_to(model, 0),
    "weights say that they are huge": lambda m: (m / "model.safetensors").write_bytes(b"\xff" * 7 + b"\0" + b"{}" * 99),
    "weights are of another shape": reshaped,
    "weights are pickled": pickled,
    "weights hold NaN": lambda model: reweighed(model, nan),
    "a weight lacks": lambda model: reweighed(model, lambda weights: weights.pop(next(iter(weights)))),
    "a weight is one too many": lambda model: reweighed(model, lambda weights: weights.update(more=torch.zeros(1))),
    **{
        f"{name} is {content!r}": lambda model, name=name, content=content: (model / name).write_bytes(content)
        for name in ("config.json", "tokenizer.json")
        for content in (
            b"",
            b"{}",
            b"[]",
            b"1",
            b"null",
            b'"text"',
            b"{",
            b"\xff",
            b'{"model_type": 5}',
            b'{"model": []}',
        )
    },
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(damage: Callable[[Path], object], model: Path) -> None:
    damage(model)
    with pytest.raises(ValueError) as refused:
        Hub(id=str(model), dtype="float32").load()
    told = str(refused.value)
    assert "\n" not in told and model.name in told


def test_vectors_that_overflow_their_type_are_refused(model: Path) -> None:
    """Weights that are finite in float16, and states that are not."""
    reweighed(model, lambda weights: [weight.mul_(0).add_(6e4) for name, weight in weights.items() if "norm" in name])
    with pytest.raises(ValueError, match="NaN or infinity"):
        texts = model.parent / "texts.txt"
        texts.write_text("one text\nanother\n")
        encode([f"model={model}", f"input={texts}", f"output={model.parent / 'v.npy'}", "backbone.dtype=float16"])
    assert not (model.parent / "v.npy").exists()
