"""Models that this project did not make, as rows beside ours: sentence-transformers models and BM25."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import bm25s
import numpy as np
import torch
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer

from unified_lm.files import folder_digest
from unified_lm.inference.embedder import Side, Similarity

PACKAGED = "packaged:"
BARE = "{text}"
PROMPT_NAMES: Mapping[Side, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""The names under which sentence-transformers looks for the prompt of a side."""

INSIDE_IDENTIFIER = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


def resolve_model_folder(model: str, revision: str | None) -> Path:
    """A local folder, `packaged:<package>/<folder>` inside an installed package, or a hub id at a pinned revision.

    Raises ValueError naming the way out. A package is found, never imported.
    """
    if model.startswith(PACKAGED):
        package, _, inside = model.removeprefix(PACKAGED).partition("/")
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise ValueError(f"{model}: the package {package} is not installed; pip install it or name a model folder")
        folder = Path(found.submodule_search_locations[0]) / inside
        if not folder.is_dir():
            raise ValueError(f"{model}: the package {package} holds no folder {inside!r}")
        return folder
    if Path(model).is_dir():
        return Path(model)
    if revision is None:
        raise ValueError(f"{model} is no folder; a hub id needs revision=<commit>, so that the row can be repeated")
    return Path(snapshot_download(model, revision=revision))


@dataclass(frozen=True, kw_only=True)
class SentenceTransformers:
    """A sentence-transformers model as an embedder.

    `query` and `document` say how a text is put to the model, with the places {instruction} and {text}: a model that
    was trained without instructions has none in its templates. `own_prompts`: the prompt that the model itself brings
    for a side stands before its texts where the template is the bare {text}. `max_length` in tokens, None for the
    model's own.
    """

    model: str
    revision: str | None = None
    query: str = BARE
    document: str = BARE
    own_prompts: bool = True
    max_length: int | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_size: int = 32

    def __post_init__(self) -> None:
        for side, template in (("query", self.query), ("document", self.document)):
            if BARE not in template:
                raise ValueError(f"the {side} template {template!r} has no place for {{text}}")

    @cached_property
    def folder(self) -> Path:
        return resolve_model_folder(self.model, self.revision)

    @cached_property
    def _loaded(self) -> SentenceTransformer:
        model = SentenceTransformer(
            str(self.folder), local_files_only=True, trust_remote_code=False, model_kwargs={"dtype": self.dtype}
        )
        if self.max_length is not None:
            model.max_seq_length = self.max_length
        return model.eval()

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        return {
            "kind": "sentence_transformers",
            "weights": folder_digest(self.folder),
            "query": self.query,
            "document": self.document,
            "prompts": {side: self.own_prompt(side) for side in PROMPT_NAMES},
            "max_length": self._loaded.max_seq_length,
            "dtype": self.dtype,
            "similarity": self.similarity,
            "libraries": {name: version(name) for name in ("sentence-transformers", "transformers", "torch")},
        }

    @property
    def similarity(self) -> Similarity:
        """Raises ValueError for a model that compares its vectors in another way."""
        own = self._loaded.similarity_fn_name or "cosine"
        if own not in ("cosine", "dot"):
            raise ValueError(f"{self.model} compares vectors by {own}; what is scored here ranks by cosine or dot")
        return own

    @property
    def readout(self) -> str:
        modes = [module.pooling_mode for module in self._loaded if hasattr(module, "pooling_mode")]
        if not modes:
            return "own"
        return modes[0] if isinstance(modes[0], str) else "+".join(modes[0])

    @property
    def attention(self) -> str:
        return "own"

    def encode(self, texts: Sequence[str], *, side: Side, instruction: str = "") -> np.ndarray:
        """n texts -> float32 [n, d]."""
        template = self.template_for(side)
        asked = [template.replace("{instruction}", instruction).replace(BARE, text) for text in texts]
        encode = self._loaded.encode_query if side == "query" else self._loaded.encode_document
        with torch.inference_mode():
            vectors = encode(asked, prompt=self.own_prompt(side), batch_size=self.batch_size, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def template_for(self, side: Side) -> str:
        return self.query if side == "query" else self.document

    def own_prompt(self, side: Side) -> str:
        """What the model brings for this side; nothing where a template takes its place."""
        if not self.own_prompts or self.template_for(side) != BARE:
            return ""
        prompts = self._loaded.prompts
        names = (*PROMPT_NAMES[side], self._loaded.default_prompt_name)
        return next((prompts[name] for name in names if prompts.get(name)), "")

    def describe_prompt(self, side: Side, instruction: str) -> str:
        """What stands before a text of this side, for the record."""
        return self.own_prompt(side) + self.template_for(side).replace("{instruction}", instruction).removesuffix(BARE)


@dataclass(kw_only=True)
class Bm25:
    """BM25 (Robertson and Zaragoza, 2009) by bm25s: words in lower case, English stop words left out, no stemming.

    `identifiers="split"` reads the words inside `lag_plot` and `DataFrame`, which code is made of. Every document
    of the corpus, or of a query's candidates, is ranked: no candidate is lost to a first cut.
    """

    k1: float = 1.5
    b: float = 0.75
    variant: Literal["lucene", "robertson", "atire"] = "lucene"
    stopwords: str = "english"
    identifiers: Literal["whole", "split"] = "split"
    _index: bm25s.BM25 | None = field(default=None, init=False, repr=False)
    _ids: list[str] = field(default_factory=list, init=False, repr=False)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "kind": "bm25",
            "k1": self.k1,
            "b": self.b,
            "variant": self.variant,
            "stopwords": self.stopwords,
            "identifiers": self.identifiers,
            "libraries": {"bm25s": version("bm25s")},
        }

    def index(self, corpus: Any, **where: Any) -> None:
        """Rows with id, text and, where there is one, a title."""
        texts = [f"{row.get('title') or ''} {row['text']}".strip() for row in corpus]
        self._ids = [row["id"] for row in corpus]
        self._index = bm25s.BM25(k1=self.k1, b=self.b, method=self.variant)
        self._index.index(self._tokenize(texts), show_progress=False)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Mapping[str, Sequence[str]] | None = None, **where: Any
    ) -> dict[str, dict[str, float]]:
        """Query id -> document id -> score, of the `top_k` best documents among all or among its candidates."""
        if self._index is None:
            raise ValueError("no corpus has been indexed")
        asked = [f"{row['text']} {row.get('instruction') or ''}".strip() for row in queries]
        positions = {name: i for i, name in enumerate(self._ids)}
        ranked: dict[str, dict[str, float]] = {}
        for query, known in zip(queries["id"], self._tokenize(asked), strict=True):
            scores = self._index.get_scores(known) if known else np.zeros(len(self._ids), dtype=np.float32)
            among = range(len(self._ids)) if top_ranked is None else [positions[name] for name in top_ranked[query]]
            best = sorted(among, key=lambda i: -scores[i])[:top_k]
            ranked[query] = {self._ids[i]: float(scores[i]) for i in best}
        return ranked

    def _tokenize(self, texts: list[str]) -> list[list[str]]:
        if self.identifiers == "split":
            texts = [INSIDE_IDENTIFIER.sub(" ", text) for text in texts]
        return bm25s.tokenize(texts, stopwords=self.stopwords, return_ids=False, show_progress=False)
