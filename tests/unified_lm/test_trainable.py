"""What is chosen to learn learns, nothing else moves, and adapters can be switched off or merged exactly."""

import copy
import importlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from tests.models import ARCHITECTURES, unified
from unified_lm.backbones import Hub
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate
from unified_lm.trainable import Lora, Trainable, disable_adapters, merge_adapters, trainable_names

CONF = Path(__file__).parents[2] / "conf" / "trainable"
SETS = ("all", "ffn", "attention", "embeddings", "ffn+attention", "ffn+embeddings", "attention+embeddings", "slots")
LORA = Lora(r=4, alpha=8, dropout=0.0, targets=["attention", "ffn"])
TOKENS = (1, 40, 41, 42, -1, -2, 43, 44, 45, 46, 2)


def from_conf(name: str) -> Trainable | Lora:
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    module, _, target = settings.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), target)(**settings)


def batch():
    """One sequence with two slots; every token that is not a slot is predicted from the position before it."""
    labels = [max(following, -100) if following >= 0 else -100 for _, following in pairwise(TOKENS)]
    return collate([Sequence(tokens=TOKENS, labels=(*labels, -100))])


def loss(model: UnifiedLM) -> torch.Tensor:
    pack = batch()
    return F.cross_entropy(model.logits(model.hidden_states(pack)), pack.labels)


def states(model: UnifiedLM) -> torch.Tensor:
    with torch.no_grad():
        return model.hidden_states(batch())


def step(model: UnifiedLM, *, rate: float = 0.1) -> float:
    """One step of plain descent: a parameter moves exactly where its gradient is not zero."""
    model.train()
    value = loss(model)
    value.backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate).step()
    model.zero_grad(set_to_none=True)
    model.eval()
    return float(value.detach())


def values(model: UnifiedLM) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def belongs(name: str, part: str) -> bool:
    """Whether a parameter of a transformers decoder belongs to a part, judged by its name."""
    if part == "all":
        return True
    if part == "slots":
        return name == "slots.vectors"
    if part == "embeddings":
        return "embed_tokens" in name
    return {"ffn": ".mlp.", "attention": ".self_attn."}[part] in name and "norm" not in name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", SETS)
def test_after_one_step_exactly_the_chosen_parameters_have_moved(name, tied, architecture):
    model = unified(architecture, slots=2, tied=tied)
    chosen = set(from_conf(name).apply(model))
    before = values(model)
    step(model)
    moved = {other for other, value in model.named_parameters() if not torch.equal(value, before[other])}
    assert moved == chosen
    parts = [*name.split("+"), "slots"]
    assert chosen == {other for other in before if any(belongs(other, part) for part in parts)}


def test_conf_has_every_set_and_nothing_else():
    assert {path.stem for path in CONF.glob("*.yaml")} >= {*SETS, "lora"}
    for name in SETS:
        assert list(from_conf(name).parts) == name.split("+")


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_take_a_tied_head_with_them_and_the_record_says_so(tied):
    model = unified(slots=2, tied=tied)
    chosen = Trainable(parts=["embeddings"])
    chosen.apply(model)
    head = model.backbone.get_output_embeddings().weight.detach().clone()
    step(model)
    changed = not torch.equal(model.backbone.get_output_embeddings().weight, head)
    assert changed == tied
    assert chosen.describe(model)["head"] == (
        "tied to the embeddings, learns with them" if tied else "separate, frozen"
    )


def test_the_record_counts_what_learns():
    model = unified(slots=2)
    chosen = Trainable(parts=["ffn"])
    chosen.apply(model)
    assert chosen.describe(model) == {
        "trainable": "ffn",
        "head": "tied to the embeddings, frozen with them",
        "slots": 2,
        "parameters_learning": 2 * 3 * 64 * 128 + 2 * 64,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def test_a_later_choice_replaces_an_earlier_one():
    model = unified(slots=1)
    Trainable(parts=["all"]).apply(model)
    names = Trainable(parts=["attention"]).apply(model)
    assert names == trainable_names(model)
    assert not any(".mlp." in name for name in names)


def test_slots_without_slots_match_nothing():
    with pytest.raises(ValueError, match="no slots"):
        Trainable(parts=["slots"]).apply(unified())


@pytest.mark.parametrize("chosen", [Trainable(parts=["ffn"]), Trainable(parts=["attention", "embeddings"]), LORA])
def test_a_set_that_matches_no_parameter_is_refused(chosen, tiny):
    """GPT-2 keeps its layers under other names than the decoders that this project knows."""
    foreign = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="matches no parameter of GPT2LMHeadModel"):
        chosen.apply(UnifiedLM(foreign, tiny.tokenizer))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Trainable(parts=["fnn"]), "fnn"),
        (lambda: Trainable(parts=[]), "one or more"),
        (lambda: Trainable(parts=["all", "ffn"]), r"use \[all\]"),
        (lambda: Lora(r=4, alpha=8, dropout=0.0, targets=["embeddings"]), "embeddings"),
        (lambda: Lora(r=0, alpha=8, dropout=0.0, targets=["ffn"]), "r=0"),
        (lambda: Lora(r=4, alpha=8, dropout=1.0, targets=["ffn"]), r"dropout=1\.0"),
    ],
)
def test_an_impossible_choice_is_refused_when_it_is_made(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("targets", [["attention"], ["ffn"], ["attention", "ffn"]], ids="+".join)
def test_adapters_start_as_nothing_and_stand_on_their_targets_alone(targets, architecture):
    model = unified(architecture, slots=2)
    base = states(model)
    names = Lora(r=4, alpha=8, dropout=0.1, targets=targets).apply(model)
    assert torch.equal(states(model), base)
    adapted = {name.split(".lora_")[0] for name in names if ".lora_" in name}
    plain = {name.removesuffix(".weight") for name in values(unified(architecture)) if name.endswith(".weight")}
    assert adapted == {name for name in plain if any(belongs(name + ".", part) for part in targets)}
    assert "slots.vectors" in names


@pytest.mark.parametrize("checkpointing", [False, True])
def test_after_one_step_every_b_has_moved_and_the_base_has_not(checkpointing):
    torch.manual_seed(0)
    model = unified("qwen3", slots=2)
    LORA.apply(model)
    if checkpointing:
        model.backbone.activation_checkpointing_enable({"use_reentrant": False})
    before = values(model)
    step(model)
    for name, value in model.named_parameters():
        if ".lora_B." in name:
            assert value.abs().sum() > 0, f"{name} learnt nothing"
        elif ".lora_" not in name and name != "slots.vectors":
            assert torch.equal(value, before[name]), f"{name} is frozen and has moved"
    assert not torch.equal(model.slots.vectors, before["slots.vectors"])


def test_recomputing_layers_changes_neither_loss_nor_gradient():
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = unified("qwen3", slots=2)
        LORA.apply(model)
        step(model)
        if checkpointing:
            model.backbone.activation_checkpointing_enable({"use_reentrant": False})
        assert model.backbone.is_activation_checkpointing == checkpointing
        model.train()
        value = loss(model)
        value.backward()
        gradients.append([value.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


def test_with_adapters_off_the_base_is_there_byte_for_byte():
    model = unified(slots=2)
    base, before = states(model), values(model)
    LORA.apply(model)
    start = model.slots.vectors.detach().clone()
    for _ in range(3):
        step(model)
    learnt = states(model)
    with torch.no_grad():
        model.slots.vectors.copy_(start)
    names = trainable_names(model)
    assert not torch.allclose(learnt, base, atol=1e-3)
    with disable_adapters(model):
        assert torch.equal(states(model), base)
    assert not torch.equal(states(model), base)
    assert trainable_names(model) == names
    for name, value in model.named_parameters():
        plain = name.replace(".base_layer", "")
        if plain in before and name != "slots.vectors":
            assert torch.equal(value, before[plain]), name


def test_an_error_inside_switches_the_adapters_on_again():
    model = unified(slots=2)
    LORA.apply(model)
    step(model)
    learnt = states(model)
    with pytest.raises(KeyError), disable_adapters(model):
        raise KeyError
    assert torch.equal(states(model), learnt)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("rslora", [False, True])
def test_merged_is_plain_and_computes_the_same(architecture, rslora):
    model = unified(architecture, slots=2)
    plain = list(values(model))
    Lora(r=4, alpha=8, dropout=0.1, targets=["attention", "ffn"], rslora=rslora).apply(model)
    for _ in range(2):
        step(model)
    adapted = states(model)
    assert merge_adapters(model) is model
    assert list(values(model)) == plain
    assert torch.allclose(states(model), adapted, atol=1e-5 * float(adapted.abs().max()))


def test_rslora_scales_by_the_root_of_the_rank():
    """One B of ones and one A of ones in a layer: the update is alpha / r x r, or alpha / sqrt(r) x r."""
    updates = []
    for rslora in (False, True):
        model = unified()
        Lora(r=4, alpha=8, dropout=0.0, targets=["ffn"], rslora=rslora).apply(model)
        layer = model.backbone.model.layers[0].mlp.up_proj
        with torch.no_grad():
            layer.lora_A["default"].weight.fill_(1)
            layer.lora_B["default"].weight.fill_(1)
        before = layer.base_layer.weight.detach().clone()
        merge_adapters(model)
        updates.append((model.backbone.model.layers[0].mlp.up_proj.weight - before).mean().item())
    assert updates == pytest.approx([8.0, 16.0], rel=1e-4)


def test_a_chain_of_adapters_is_merged_in_order():
    """Stage one, merged, then stage two on top: its vectors are those of both together, merged or not."""
    model = unified(slots=2)
    LORA.apply(model)
    step(model)
    first = states(model)
    merge_adapters(model)
    LORA.apply(model)
    assert torch.allclose(states(model), first, atol=1e-4)
    step(model)
    second = states(model)
    assert not torch.allclose(second, first, atol=1e-3)
    merge_adapters(model)
    assert torch.allclose(states(model), second, atol=1e-5 * float(second.abs().max()))


@pytest.mark.parametrize("chosen", [LORA, Trainable(parts=["ffn"])])
def test_adapters_are_not_put_upon_adapters(chosen):
    model = unified()
    LORA.apply(model)
    with pytest.raises(ValueError, match="merge them first"):
        chosen.apply(model)


def test_merging_without_adapters_is_refused():
    with pytest.raises(ValueError, match="no adapters"):
        merge_adapters(unified())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_bfloat16_base_with_float32_adapters_runs_trains_and_keeps_its_dtype(autocast, tmp_path):
    model = unified("mistral", slots=2, dtype="bfloat16", autocast=autocast)
    LORA.apply(model)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if ".lora_" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if ".lora_" not in name and name != "slots.vectors"} == {
        torch.bfloat16
    }
    step(model, rate=1.0)
    adapted = states(model)
    merge_adapters(model)
    assert F.cosine_similarity(states(model).float(), adapted.float()).min() > 0.999
    model.backbone.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = Hub(id=str(tmp_path), dtype="bfloat16").load().model
    for (name, value), reloaded in zip(model.backbone.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(value, reloaded), name
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_merging_does_not_depend_on_a_copy():
    """A model copied before merging keeps its adapters: nothing of peft's is shared between the two."""
    model = unified(slots=2)
    LORA.apply(model)
    step(model)
    twin = copy.deepcopy(model)
    adapted = states(twin)
    merge_adapters(model)
    assert torch.equal(states(twin), adapted)
