"""Encoding: a text's vector depends on the text, its side and its instruction, and on nothing else."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models import PLANS, form, unified
from unified_lm.inference import embedding_store as store
from unified_lm.inference import encode
from unified_lm.inference.embedding_store import EmbeddingStore, vector_key, weights_digest
from unified_lm.inference.encode import Encoder
from unified_lm.packing import Sequence

TEXTS = ["a", "some text", "a somewhat longer text about numbers", "one, two, three. " * 12, "the end"]


def encoder(slots=0, plan="causal", readout="mean", budget=2048, similarity="cosine", **options) -> Encoder:
    model = unified(slots=slots, **options)
    maker = form(model, PLANS[plan])
    return Encoder(model=model, format=maker, readout=readout, budget=budget, similarity=similarity)


@pytest.mark.parametrize("plan", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize("readout", ["mean", "weighted_mean", "last", "slot_0", "slot_1"])
@pytest.mark.parametrize("side", ["query", "document"])
def test_adding_texts_changes_no_vector_and_order_is_kept(plan, readout, side):
    small = encoder(2, plan, readout, budget=40)
    large = encoder(2, plan, readout, budget=4000)
    asked = "find" if side == "query" else ""
    together = large.encode(TEXTS, side=side, instruction=asked)
    np.testing.assert_allclose(small.encode(TEXTS, side=side, instruction=asked), together, atol=1e-6)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(large.encode([text], side=side, instruction=asked)[0], together[i], atol=1e-6)
    np.testing.assert_allclose(large.encode(TEXTS[::-1], side=side, instruction=asked)[::-1], together, atol=1e-6)
    repeated = large.encode([TEXTS[1], *TEXTS, TEXTS[1]], side=side, instruction=asked)
    np.testing.assert_array_equal(repeated[0], repeated[-1])
    np.testing.assert_allclose(repeated[1:-1], together, atol=1e-6)


def test_sides_and_instructions_give_other_vectors_and_cosine_vectors_have_length_one():
    made = encoder()
    query, told = (made.encode(TEXTS, side="query", instruction=i) for i in ("", "find it"))
    document = made.encode(TEXTS, side="document")
    assert query.shape == (len(TEXTS), made.model.width) and query.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1, atol=1e-6)
    assert abs(query - told).max() > 1e-3 and abs(query - document).max() > 1e-3
    assert abs(np.linalg.norm(encoder(similarity="dot").encode(TEXTS, side="query"), axis=1) - 1).min() > 1e-3


def test_every_leaf_of_the_identity_is_in_it():
    base = encoder()
    others = [
        encoder(slots=1),
        encoder(plan="bidirectional"),
        encoder(readout="last"),
        encoder(similarity="dot"),
        encoder(autocast=torch.bfloat16),
        Encoder(model=base.model, format=form(base.model, query_length=7), readout="mean"),
        Encoder(model=base.model, format=base.format, readout="mean", weights={"digest": "1"}),
    ]
    identities = [str(e.identity) for e in (base, *others)]
    assert len(set(identities)) == len(identities)
    assert str(encoder(budget=7).identity) == identities[0]


def test_no_texts_give_no_vectors_and_an_empty_text_is_named():
    made = encoder()
    assert made.encode([], side="query").shape == (0, made.model.width)
    with pytest.raises(ValueError, match="text 1 is empty"):
        made.encode(["a", " "], side="query")
    with pytest.raises(ValueError, match="use query or document"):
        made.encode(["a"], side="passage")


def test_encoding_uses_no_dropout_and_leaves_the_model_in_the_mode_it_was_in():
    made = encoder(dropout=0.5)
    made.model.train()
    np.testing.assert_array_equal(made.encode(TEXTS, side="query"), made.encode(TEXTS, side="query"))
    assert made.model.training


def counted(made: Encoder, **changes) -> tuple[Encoder, list[dict]]:
    """The encoder with its counters collected."""
    counters: list[dict] = []
    return replace(made, on_log=counters.append, **changes), counters


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 30])
def test_several_devices_and_windows_give_the_vectors_of_one_in_order(count, monkeypatch):
    monkeypatch.setattr(encode, "TEXTS_PER_WINDOW", 8)
    texts = [f"text {i} " * (1 + i % 5) for i in range(count)]
    made, counters = counted(encoder(budget=30), replicas=(unified(), unified()))
    np.testing.assert_allclose(made.encode(texts, side="query"), encoder().encode(texts, side="query"), atol=1e-6)
    assert (
        counters[0]["tokens"] == sum(map(len, made.build_sequences(texts, "query"))) and counters[0]["texts"] == count
    )


def test_an_error_in_the_background_reaches_the_caller_and_ends_its_thread():
    made = encoder()
    with pytest.raises(ValueError, match="no room for the text"):
        replace(made, format=form(made.model, query_length=1)).encode(TEXTS, side="query", instruction="long")
    assert made.encode(TEXTS, side="query").shape == (len(TEXTS), made.model.width)


def test_a_second_encoding_reads_every_vector_from_the_store_and_new_texts_are_added(tmp_path):
    made, counters = counted(encoder(), store=EmbeddingStore(folder=tmp_path))
    first = made.encode(TEXTS, side="document")
    again = made.encode([*TEXTS[::-1], "new"], side="document")
    np.testing.assert_array_equal(again[:-1][::-1], first)
    assert [c["packs"] for c in counters] == [1, 1]
    assert counters[1]["tokens"] == len(made.build_sequences(["new"], "document")[0])
    np.testing.assert_allclose(again, encoder().encode([*TEXTS[::-1], "new"], side="document"), atol=1e-6)


def test_the_store_gives_no_vector_of_other_weights_modes_readouts_dtypes_sides_or_instructions(tmp_path):
    base = encoder(readout="last")
    other = unified(seed=1)
    nudged = unified()
    with torch.no_grad():
        nudged.backbone.model.layers[0].mlp.up_proj.weight[3, 5] += 1e-3
    variants = {
        "weights": Encoder(model=other, format=form(other), readout="last"),
        "one weight": Encoder(model=nudged, format=form(nudged), readout="last"),
        "mode": encoder(plan="bidirectional", readout="last"),
        "readout": encoder(readout="mean"),
        "similarity": encoder(readout="last", similarity="dot"),
        "dtype": encoder(readout="last", autocast=torch.bfloat16),
        "length": Encoder(model=base.model, format=form(base.model, query_length=9), readout="last"),
        "slots": encoder(1, readout="last"),
    }
    kept = EmbeddingStore(folder=tmp_path)
    replace(base, store=kept).encode(TEXTS, side="query")
    for name, variant in variants.items():
        made, _ = counted(variant, store=kept)
        np.testing.assert_allclose(
            made.encode(TEXTS, side="query"), variant.encode(TEXTS, side="query"), atol=2e-6, err_msg=name
        )
    for side, instruction in (("document", ""), ("query", "find")):
        found = replace(base, store=kept).encode(TEXTS, side=side, instruction=instruction)
        np.testing.assert_allclose(found, base.encode(TEXTS, side=side, instruction=instruction), atol=1e-6)
    one = Sequence(tokens=(5, 6, 7), spans={"text": (1, 3)})
    keys = {vector_key(s) for s in (one, replace(one, spans={"text": (2, 3)}), replace(one, mode="bidirectional"))}
    assert len(keys) == 3 and vector_key(replace(one, row=4)) == vector_key(one)


def test_a_trusting_store_goes_by_the_name_of_the_weights_and_any_other_by_their_bits(tmp_path, monkeypatch):
    made = encoder()
    named = {name: replace(made, weights={"digest": name}) for name in ("a", "b")}
    with monkeypatch.context() as patch:
        patch.setattr(encode, "weights_digest", lambda model: pytest.fail("the weights were read"))
        spaces = {
            str(replace(one, store=EmbeddingStore(folder=tmp_path, trust_weights=True)).vector_identity)
            for one in named.values()
        }
    assert len(spaces) == 2
    assert (
        len({str(replace(one, store=EmbeddingStore(folder=tmp_path)).vector_identity) for one in named.values()}) == 1
    )


def test_vectors_that_wait_are_written_after_a_while_and_only_finite_ones(tmp_path, monkeypatch):
    space = EmbeddingStore(folder=tmp_path).open_space({"a": 1})
    keys = [vector_key(Sequence(tokens=(i + 1,))) for i in range(6)]
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    vectors[3, 1] = np.inf
    for seconds, shards in ((1e9, 1), (0.0, 3)):
        monkeypatch.setattr(store, "MAX_WAIT_SECONDS", seconds)
        with space.open_writer() as writer:
            for i in range(0, 6, 2):
                writer.add(keys[i : i + 2], vectors[i : i + 2])
        found = list(tmp_path.glob("*/*.keys.npy"))
        assert len(found) == shards and sum(len(np.load(path)) for path in found) == 5
        for path in found:
            path.unlink()


def test_weights_are_digested_bit_by_bit_and_place_by_place():
    module = torch.nn.Linear(5, 3)
    found = {weights_digest(module)}
    with torch.no_grad():
        module.weight[0, 0] = torch.nextafter(module.weight[0, 0], torch.tensor(9.0))
        found.add(weights_digest(module))
        module.weight.copy_(module.weight.flip(1))
        found.add(weights_digest(module))
        module.weight.copy_(module.weight.flip(1))
    assert len(found) == 3 and weights_digest(module) in found
    found |= {weights_digest(module.to(torch.bfloat16)), weights_digest(torch.nn.Linear(5, 3, bias=False))}
    assert len(found) == 5


def test_a_killed_encoding_leaves_its_whole_shards_and_nothing_else(tmp_path):
    script = f"""
import os, signal, sys
from pathlib import Path
from tests.unified_lm.test_encode import encoder
from dataclasses import replace
from unified_lm.inference import encode
from unified_lm.inference import embedding_store as store
encode.TEXTS_PER_WINDOW = store.SHARD_VECTORS = 8
whole, count = store.write_shard, 0
def write(folder, keys, vectors):
    global count
    count += 1
    if count == 3:  # between the vectors and the keys
        store.np.save = lambda file, array, save=store.np.save: (
            save(file, array) if array.dtype == "float32" else os.kill(os.getpid(), signal.SIGKILL))
    whole(folder, keys, vectors)
store.write_shard = write
texts = [f"text {{i}} of many" for i in range(40)]
replace(encoder(budget=30), store=store.EmbeddingStore(folder=Path({str(tmp_path)!r}))).encode(texts, side="query")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    texts = [f"text {i} of many" for i in range(40)]
    made, counters = counted(encoder(), store=EmbeddingStore(folder=tmp_path))
    np.testing.assert_allclose(made.encode(texts, side="query"), encoder().encode(texts, side="query"), atol=1e-6)
    whole = sum(map(len, made.build_sequences(texts, "query")))
    assert 0 < counters[0]["tokens"] < whole
    assert len(list(tmp_path.glob("*/space.json"))) == 1


def test_many_shards_are_searched_and_the_vectors_are_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SHARD_VECTORS", 3)
    space = EmbeddingStore(folder=tmp_path).open_space({"a": 1})
    keys = [vector_key(Sequence(tokens=(i + 1,))) for i in range(20)]
    vectors = np.arange(40, dtype=np.float32).reshape(20, 2)
    with space.open_writer() as writer:
        for i in range(0, 20, 2):
            writer.add(keys[i : i + 2], vectors[i : i + 2])
    opened = EmbeddingStore(folder=tmp_path).open_space({"a": 1})
    assert len(opened.shards) == 5 and isinstance(opened.shards[0].vectors, np.memmap)
    numbers, found = opened.look_up([keys[7], vector_key(Sequence(tokens=(99,))), keys[3], keys[7]])
    assert dict(zip(numbers.tolist(), found.tolist(), strict=True)) == {0: [14, 15], 2: [6, 7], 3: [14, 15]}
    assert EmbeddingStore(folder=tmp_path).open_space({"a": 2}).look_up(keys)[0].size == 0
