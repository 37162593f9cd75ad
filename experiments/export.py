"""A folder that sentence_transformers, transformers and vLLM open: `python -m experiments.export run=RUN_ID to=DIR`."""

import copy
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError, as_usage_error
from experiments.config.paths import display_path
from experiments.runs.resolve_model import find_run_folder, split_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from experiments.runs.open_run import OpenRun

USAGE = "usage: python -m experiments.export run=RUN_ID to=DIR"
POOLING = {"mean": "mean", "weighted_mean": "weightedmean", "last": "lasttoken"}
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
CLOSE = 1e-5  # of a cosine, both in the weights' own dtype
PROBES = ("Return the largest element of a list.", "a text", "Numbers: 12 and 7; names: x_1, `sort`.")
ENCODE = "python -m experiments.encode model={run} input=FILE output=FILE.npy"


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, others = split_arguments(arguments, ["run", "to"], USAGE)
    if set(own) != {"run", "to"} or others:
        raise UsageError(USAGE)
    folder, target = find_run_folder(own["run"]), Path(own["to"]).expanduser()
    if folder is None:
        raise UsageError(f"run={own['run']} is no run: give a run id under outputs/runs, or a run directory")
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"to={target} is not empty; nothing in it is overwritten")
    from experiments.runs.open_run import open_run
    from unified_lm.backbones.base import without_progress_bars

    with as_usage_error():
        found = open_run(folder)
    if found.built is None:
        raise UsageError(f"run={own['run']} has no decoder of ours to export")
    reason = explain_inexpressible(found)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        made = Path(place) / "model"
        with without_progress_bars():
            save_decoder(found, made)
            if reason is None:
                save_pooling(found, made)
                save_decoder(found, made)  # again: sentence_transformers has left a decoder without its head
                verify_vectors(found, made)
        if target.exists():
            target.rmdir()
        shutil.move(made, target)
    print(f"{display_path(target.absolute())}: a decoder for transformers and vLLM (AutoModelForCausalLM)")
    if reason is None:
        print("it embeds with sentence_transformers.SentenceTransformer(DIR).encode_query / encode_document")
        return 0
    print(f"it does not embed there: {reason}; vectors come from {ENCODE.format(run=own['run'])}", file=sys.stderr)
    return 1


def explain_inexpressible(found: "OpenRun") -> str | None:
    """Why sentence_transformers cannot compute this run's vectors; None where it can."""
    experiment, form = found.experiment, found.built.form
    readout, template = experiment.method.readout, experiment.template
    if form.slots:
        return f"its {form.slots} slots are vectors placed between tokens, which no vocabulary row stands for"
    if form.plan.embed != "causal":
        return f"attention.embed={form.plan.embed} is not how transformers runs this decoder"
    if readout not in POOLING:
        return f"read-out {readout} has no pooling of that kind"
    for side in ("query", "document"):
        if not getattr(template, side).replace("{slots}", "").endswith("{text}"):
            return f"template.{side} continues behind the text, and a prompt of sentence_transformers stands before it"
    return None


def save_decoder(found: "OpenRun", folder: Path) -> None:
    """The whole decoder under transformers' own names, adapters merged, and its tokenizer."""
    from unified_lm.trainable import merge_adapters

    model = found.built.model
    if hasattr(model.backbone, "peft_config"):
        merge_adapters(model)
    model.backbone.set_attn_implementation("sdpa")  # ours is registered in this process only
    model.backbone.save_pretrained(folder, safe_serialization=True)
    exported_tokenizer(found).save_pretrained(folder)
    model.backbone.set_attn_implementation("unified")


def exported_tokenizer(found: "OpenRun") -> "PreTrainedTokenizerBase":
    """The run's tokenizer; for a mean over the text alone, one in which the BOS has no role of its own.

    sentence_transformers takes a special token at the end of a prompt for the text's, and would pool it. The token, its
    id and the chat template stay as they are.
    """
    ours = found.built.form.tokenizer
    if found.experiment.method.readout == "last" or not prompt_before_text(found, "query").endswith(
        ours.bos_token or "\0"
    ):
        return ours
    plain = copy.deepcopy(ours)
    plain.bos_token = None
    return plain


def save_pooling(found: "OpenRun", folder: Path) -> None:
    """What sentence_transformers needs beside a decoder: prompts, pooling over the text alone, and unit length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    form, method = found.built.form, found.experiment.method
    ahead = int(
        prompt_before_text(found, "query") != template_before_text(found, "query")
    )  # a BOS that our lengths do not count
    transformer = Transformer(
        str(folder),
        query_length=form.query_length + ahead,
        document_length=form.document_length + ahead,
        modality_config={
            "text": TEXT
        },  # without it a tokenizer with a chat template puts every text into a user's turn
        module_output_name="token_embeddings",
    )
    width = transformer.get_embedding_dimension()
    pooling = Pooling(width, pooling_mode=POOLING[method.readout], include_prompt=method.readout == "last")
    modules = [transformer, pooling, *([Normalize()] if method.similarity == "cosine" else [])]
    similarity = "cosine" if method.similarity == "cosine" else "dot"
    prompts = {side: prompt_before_text(found, side) for side in ("query", "document")}
    model = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name=similarity, device="cpu")
    model.save(str(folder), create_model_card=False)


def prompt_before_text(found: "OpenRun", side: str) -> str:
    """What stands before a text of that side, the beginning of sequence included."""
    before, bos = template_before_text(found, side), found.built.form.tokenizer.bos_token or ""
    return before if not found.experiment.template.bos or before.startswith(bos) else bos + before


def template_before_text(found: "OpenRun", side: str) -> str:
    return getattr(found.experiment.template, side).partition("{text}")[0].replace("{instruction}", "")


def verify_vectors(found: "OpenRun", folder: Path) -> None:
    """The exported folder must give this run's vectors.

    Raises `UsageError` where it does not: then nothing is exported.
    """
    import numpy as np
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False, device="cpu")
    found.built.model.autocast = None
    for side, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        ours = found.subject.embedder.encode(list(PROBES), side=side)
        other = encode(list(PROBES), show_progress_bar=False)
        cosine = (ours * other).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(other, axis=1)
        if float(cosine.min()) < 1 - CLOSE:
            raise UsageError(
                f"sentence_transformers gives other {side} vectors (cosine {cosine.min():.4f}): not exported"
            )


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
