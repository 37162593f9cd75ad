"""Trained models by name: encoded, scored with other suites, exported."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import encode, export, score
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.runs.execute import ensure_run
from experiments.runs.open_run import build_model, open_run
from experiments.runs.record import change_record, read_record

TEXTS = ("what is water", "bread is food", "a list has elements")
QUIET = ["scale=tiny", "logging.wandb=disabled"]


@pytest.fixture
def made(here: None) -> Run:
    run = identify(compose(["experiment=t15_contrastive", *QUIET]))
    assert ensure_run(run) == 0
    return run


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("side", ["query", "document"])
def test_encode_writes_one_vector_a_line_the_runs_own(made: Run, texts: Path, tmp_path: Path, side: str) -> None:
    output = tmp_path / "vectors.npy"
    assert encode.main([f"model={made.run_id}", f"input={texts}", f"output={output}", f"side={side}"]) == 0
    vectors = np.load(output)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, open_run(made.folder).subject.embedder.encode(list(TEXTS), side=side))


def test_only_a_line_feed_ends_a_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes("one\u2028still one\x0c, and still\r\ntwo\n".encode())
    assert encode.read_texts(path) == ["one\u2028still one\x0c, and still", "two"]


def test_encode_names_the_line_without_text(made: Run, texts: Path, tmp_path: Path) -> None:
    texts.write_text("a\n\nb\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"texts\.txt:2"):
        encode.main([f"model={made.run_id}", f"input={texts}", f"output={tmp_path / 'v.npy'}"])
    assert not (tmp_path / "v.npy").exists()


def test_a_model_that_is_nowhere_is_told_with_the_nearest_run(made: Run) -> None:
    with pytest.raises(UsageError, match=f"did you mean {made.run_id}"):
        encode.find_embedder(made.run_id[:-1], [])


def test_a_run_that_did_not_end_is_not_encoded(made: Run) -> None:
    change_record(made.folder, digest=None, status="failed")
    with pytest.raises(UsageError, match="not been trained to its end"):
        open_run(made.folder)


def test_weights_that_are_damaged_are_told_in_one_line(made: Run, texts: Path, tmp_path: Path) -> None:
    for path in made.folder.glob("checkpoint/*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="or they are damaged"):
        encode.main([f"model={made.run_id}", f"input={texts}", f"output={tmp_path / 'v.npy'}"])
    with pytest.raises(UsageError, match="or they are damaged"):
        export.main([f"run={made.run_id}", f"to={tmp_path / 'exported'}"])
    assert not (tmp_path / "exported").exists()


def test_a_folder_without_a_model_is_told_in_one_line(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        encode.main([f"model={tmp_path}", f"input={texts}", f"output={tmp_path / 'v.npy'}"])


def test_a_tilde_is_the_users_home(made: Run, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert encode.main([f"model={made.run_id}", f"input=~/{texts.name}", "output=~/v.npy"]) == 0
    assert export.main([f"run={made.run_id}", "to=~/exported"]) == 0
    assert (tmp_path / "v.npy").exists() and (tmp_path / "exported" / "config.json").exists()


def test_slots_come_back_with_a_frozen_backbone(here: None) -> None:
    run = identify(compose(["experiment=t15_ulme", "trainable=slots", *QUIET]))
    assert ensure_run(run) == 0
    trained = open_run(run.folder)
    fresh = build_model(trained.experiment)
    assert trained.record.trainable["parameters_learning"] == trained.built.model.slots.vectors.numel()
    assert not bool((trained.built.model.slots.vectors == fresh.model.slots.vectors).any())
    weights = dict(fresh.model.backbone.named_parameters())
    assert all(bool((weights[name] == p).all()) for name, p in trained.built.model.backbone.named_parameters())


def beir(folder: Path) -> Path:
    """A retrieval data set of six documents in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    pairs = [(f"d{i}", f"q{i}", text) for i, text in enumerate((*TEXTS, "light is fast", "two is one more", "it sees"))]
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        corpus.writelines(json.dumps({"_id": d, "title": "", "text": text}) + "\n" for d, _, text in pairs)
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries:
        queries.writelines(json.dumps({"_id": q, "text": text}) + "\n" for _, q, text in pairs)
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for d, q, _ in pairs)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_finished_run_is_scored_with_another_suite_and_keeps_its_weights(
    made: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.runs import execute

    monkeypatch.setattr(score, "run_worker", execute.run_worker)
    before = read_record(made.folder)
    folder = beir(tmp_path / "six")
    arguments = [f"model={made.run_id}", "evals=[local_beir]", f"evals.local_beir.folder={folder}"]
    assert score.main(arguments) == 0
    after = read_record(made.folder)
    assert after.digest == before.digest
    assert {one.suite for one in after.scores} == {"local_beir"}
    assert "ndcg_at_10" in capsys.readouterr().out
    assert score.main(arguments) == 0
    assert "already there" in capsys.readouterr().out
    assert ensure_run(made) == 0


def test_export_gives_a_folder_with_the_same_vectors_and_the_same_decoder(made: Run, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModelForCausalLM

    target = tmp_path / "exported"
    assert export.main([f"run={made.run_id}", f"to={target}"]) == 0
    found = open_run(made.folder)
    found.built.model.autocast = None
    theirs = SentenceTransformer(str(target), local_files_only=True, device="cpu")
    ours = found.subject.embedder.encode(list(TEXTS), side="query")
    assert np.abs(ours - theirs.encode_query(list(TEXTS))).max() < 1e-5
    decoder = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, local_files_only=True)
    ids = torch.tensor([[1, 73, 378]])
    expected = found.built.model.backbone
    expected.set_attn_implementation("sdpa")
    with torch.no_grad():
        assert torch.allclose(decoder(ids).logits, expected(ids).logits, atol=1e-5)


def test_export_says_what_sentence_transformers_cannot_express(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = identify(compose(["experiment=t15_ulme", *QUIET]))
    assert ensure_run(run) == 0
    assert export.main([f"run={run.run_id}", f"to={tmp_path / 'exported'}"]) == 1
    said = capsys.readouterr().err
    assert "slots" in said
    assert "experiments.encode" in said
    assert not (tmp_path / "exported" / "modules.json").exists()
    assert (tmp_path / "exported" / "model.safetensors").exists()


def test_export_overwrites_nothing(made: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("here", encoding="utf-8")
    with pytest.raises(UsageError, match="nothing in it is overwritten"):
        export.main([f"run={made.run_id}", f"to={tmp_path}"])
