"""Causal decoders of transformers and diffusion decoders, from a pinned hub commit or a local folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from unified_lm.backbones.base import (
    LoadedBackbone,
    read_facts,
    read_tokenizer,
    read_weights,
    refused_where_unreadable,
    torch_dtype,
)
from unified_lm.backbones.diffusion import DIFFUSION_FORMATS, DiffusionFormat, require_supported_transformers
from unified_lm.files import file_digest, json_digest

COMMIT = re.compile(r"[0-9a-f]{40}")
# What a checkpoint is made of. Never *.bin or *.pt (pickle), never *.py.
FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json")
FILES += ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "*.jinja")


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A decoder by hub id at one commit, or in a local folder (then without a revision).

    ``model_type`` in config.json decides how it is read: transformers' class of that type, or a diffusion layout.
    A tokenizer without a padding token gets its end token as one: no vocabulary row is ever added.
    """

    id: str
    dtype: str
    revision: str | None = None
    subfolder: str = ""

    def __post_init__(self) -> None:
        torch_dtype(self.dtype)
        if self._is_local:
            if self.revision is not None:
                raise ValueError(
                    f"backbone.id={self.id} is a local folder, which has no backbone.revision={self.revision}; "
                    "its files are its identity: use backbone.revision=null"
                )
        elif self.id.startswith(("/", ".", "~")):
            raise ValueError(f"backbone.id={self.id}: there is no such folder; give an existing folder or a hub id")
        elif self.revision is None or not COMMIT.fullmatch(self.revision):
            raise ValueError(
                f"backbone.revision={self.revision} of backbone.id={self.id} is no commit: a branch or tag moves, so a "
                "number measured on it names no model; give as backbone.revision= the 40 hexadecimal digits that the "
                "model's page shows under 'Files and versions', 'History'"
            )

    @property
    def name(self) -> str:
        return Path(self.id).name

    def fingerprint(self) -> str:
        """Digest of a local folder's files (large files are read once), or of a hub id and its commit."""
        if not self._is_local:
            return json_digest([self.id, self.revision, self.subfolder, self.dtype])
        folder = self._checkpoint_folder()
        files = {path.name: file_digest(path) for pattern in FILES for path in folder.glob(pattern)}
        return json_digest([files, self.dtype])

    def load(self) -> LoadedBackbone:
        config_file = self._config_file()
        facts = read_facts(config_file)
        kind, dtype = facts.get("model_type"), torch_dtype(self.dtype)
        if kind in DIFFUSION_FORMATS:
            return self._load_diffusion(DIFFUSION_FORMATS[kind], facts, dtype)
        config = _causal_config(config_file, kind)
        folder = self._checkpoint_folder()
        tokenizer = read_tokenizer(folder)
        model = read_weights(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], folder, dtype)
        _declare_padding(model, tokenizer, self.id)
        return LoadedBackbone(model=model, tokenizer=tokenizer)

    def _load_diffusion(self, layout: DiffusionFormat, facts: dict[str, Any], dtype: torch.dtype) -> LoadedBackbone:
        require_supported_transformers()
        layout.config(facts)  # refuses what cannot be mapped before gigabytes are fetched
        folder = self._checkpoint_folder()
        tokenizer = read_tokenizer(folder, layout.tokenizer_class)
        mask = facts.get("mask_token_id")
        if mask is None or not 0 <= mask < len(tokenizer):
            raise ValueError(
                f"mask_token_id={mask} in config.json of {self.id} is none of the {len(tokenizer)} tokens of its "
                "tokenizer; a diffusion backbone cannot be used without its mask token"
            )
        model = layout.load_model(facts, folder, dtype)
        _declare_padding(model, tokenizer, self.id)
        return LoadedBackbone(model=model, tokenizer=tokenizer, logits_shift=layout.logits_shift, mask_token_id=mask)

    def config(self) -> PreTrainedConfig:
        """transformers' configuration of this decoder, from config.json alone.

        Raises `ValueError` for a decoder that transformers cannot build without code from the checkpoint.
        """
        path = self._config_file()
        facts = read_facts(path)
        kind = facts.get("model_type")
        return DIFFUSION_FORMATS[kind].config(facts) if kind in DIFFUSION_FORMATS else _causal_config(path, kind)

    @property
    def _is_local(self) -> bool:
        return Path(self.id).expanduser().is_dir()

    def _config_file(self) -> Path:
        if self._is_local:
            path = Path(self.id).expanduser() / self.subfolder / "config.json"
            if not path.is_file():
                raise ValueError(f"backbone.id={self.id} holds no config.json; give the folder of one checkpoint")
            return path
        return Path(
            _download(hf_hub_download, self.id, "config.json", revision=self.revision, subfolder=self.subfolder)
        )

    def _checkpoint_folder(self) -> Path:
        folder = Path(self.id).expanduser() / self.subfolder if self._is_local else self._download_snapshot()
        if not any(folder.glob("*.safetensors")):
            raise ValueError(
                f"backbone.id={self.id} holds no *.safetensors in {folder}, and pickled weights are never opened; "
                "fetch the whole checkpoint, or convert it once with `save_pretrained` and give that folder"
            )
        return folder

    def _download_snapshot(self) -> Path:
        """Return the pinned commit's folder in the hub cache; download missing files."""
        inside = f"{self.subfolder}/" if self.subfolder else ""
        root = _download(
            snapshot_download,
            self.id,
            revision=self.revision,
            allow_patterns=[inside + pattern for pattern in FILES],
            ignore_patterns=[f"{inside}consolidated*", f"{inside}*/*"],
        )
        return Path(root) / self.subfolder


def _download(download: Any, repository: str, *names: str, revision: str | None, **how: Any) -> str:
    """Return a file or snapshot of the hub cache, downloaded if it is missing and the hub can be reached."""
    try:
        return download(repository, *names, revision=revision, **how)
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise ValueError(
            f"the hub does not give out {repository}: {error}; check backbone.id=, accept the licence on the model's "
            "page and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"{repository} has no commit {revision}: check backbone.revision=") from error
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{repository} at {revision} is not in the hub cache of this machine and the hub cannot be reached; "
            f"run `hf download {repository} --revision {revision}` where there is a network and copy the cache, "
            "or give a local folder as backbone.id="
        ) from error


def _causal_config(path: Path, kind: str | None) -> PreTrainedConfig:
    """The configuration of a decoder that transformers itself can build."""
    known = {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    if kind not in known:
        raise ValueError(
            f"model_type={kind} in {path} is no causal decoder of transformers and would need code "
            f"from the checkpoint, which is never run; use one of transformers' own, or {sorted(DIFFUSION_FORMATS)}"
        )
    with refused_where_unreadable(str(path)):
        return AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)


def _declare_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, source: str) -> None:
    """Set a missing padding token. Raises ValueError for tokens without an embedding row."""
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {source} has no end token: set eos_token in its tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of {source} has {len(tokenizer)} tokens and the model {rows} embedding rows; "
            "tokenizer and weights are of different checkpoints"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
