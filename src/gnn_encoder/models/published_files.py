"""The folder of a published model that sentence-transformers reads: its files, and refusals of what is not understood.

Only JSON files, tokenizers and safetensors are read: no code, no pickles.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.models.backbone import load_weights
from gnn_encoder.models.backbone_files import resolve_backbone
from gnn_encoder.models.hub import ask_hub
from gnn_encoder.models.sentence_layout import EMPTY, MODULES, SETTINGS, TRANSFORMER, TRANSFORMER_CONFIGS

FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.metadata")
"""Files of a hub's model that are downloaded."""
UNUSED = re.compile(r"(^|\.)(pooler\.|position_ids$)|^(cls\.|lm_head\.)")
"""Weights of a pretraining that a published head does not read."""
OF_TRANSFORMER = {
    "max_seq_length", "do_lower_case", "unpad_inputs", "transformer_task", "modality_config", "module_output_name",
    "processing_kwargs",
}  # fmt: skip
"""Keys of the Transformer module's file that name no code or weights elsewhere."""
OF_MODEL = {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"}
"""The same of `config_sentence_transformers.json`."""


def refused(name: str, reason: str) -> UserError:
    """The error of a published model that would be read otherwise than its publisher meant."""
    return UserError(f"published model {name!r} is refused: {reason}; choose another one")


def local_files(name: str) -> Path:
    """The folder of a model by its folder, hub name or `s3://` address; files of a hub are downloaded."""
    resolved = resolve_backbone(name)
    if not Path(resolved).is_dir():
        ask_hub()
        from huggingface_hub import snapshot_download

        try:
            resolved = snapshot_download(resolved, allow_patterns=[*FILES])
        except Exception as error:  # as many errors as there are troubles with a network
            raise UserError(f"cannot load published model {name!r}: {one_line(error)[:160]}; give a folder") from None
    return Path(resolved)


def content(name: str, file: Path, kind: type = dict) -> Any:
    """The parsed content of a JSON file, an object or a list; an empty one if the file is missing."""
    try:
        values = json.loads(file.read_text("utf-8")) if file.is_file() else kind()
    except (OSError, ValueError, RecursionError) as error:
        raise refused(name, f"{file.name}: {one_line(error)}") from None
    if not isinstance(values, kind):
        raise refused(name, f"{file.name} is not a JSON {'object' if kind is dict else 'list'}")
    return values


class PublishedFiles(NamedTuple):
    """What the files of sentence-transformers in a folder say; all are empty in a folder of transformers alone."""

    modules: list[tuple[str, str]]
    """Name of the class, without its package, and folder of each module."""
    file: str
    """Name of the Transformer module's file."""
    transformer: dict[str, Any]
    settings: dict[str, Any]

    @classmethod
    def of(cls, name: str, folder: Path, packages: Sequence[str] = ("sentence_transformers.",)) -> "PublishedFiles":
        """Reads them; raises UserError for modules of other packages, or a transformer in another folder."""
        file = next((file for file in TRANSFORMER_CONFIGS if (folder / file).is_file()), TRANSFORMER_CONFIGS[0])
        modules = []
        for module in content(name, folder / MODULES, list):
            whole, path = (module.get(key) if isinstance(module, dict) else None for key in ("type", "path"))
            if not isinstance(whole, str) or not whole.startswith(tuple(packages)) or not isinstance(path, str):
                raise refused(name, f"{MODULES} has the module {str(whole)[:60]!r} of another package")
            modules.append((whole.rpartition(".")[2], path))
        if modules and modules[0] != (TRANSFORMER, ""):
            raise refused(name, f"{MODULES} does not begin with {TRANSFORMER} in the same folder")
        return cls(modules, file, content(name, folder / file), content(name, folder / SETTINGS))


def check_keys(name: str, file: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuses a file with a value of a key that is not known."""
    for key, value in values.items():
        if key not in known and value not in EMPTY:
            raise refused(name, f"{file} sets {key} to {str(value)[:60]!r}")


def check_weights(
    name: str, folder: Path, loader: Any, unused: re.Pattern[str] = UNUSED, spare: re.Pattern[str] | None = None
) -> Any:
    """The config of a model in which no weight, such as its head's, starts at random, and of which none is left unread.

    Args:
        loader: transformers' auto class. unused: weights that need not be read. spare: weights that may be missing.
    """
    return load_weights(loader, str(folder), unused, spare, partial(refused, name), use_safetensors=True).config


def by_sentence_transformers(name: str, kind: Any, folder: Path) -> Any:
    """A model of a class of sentence-transformers, in fp32 on the CPU; raises UserError if the class refuses it."""
    from transformers.utils import logging as of_transformers

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)  # no word about a prompt
    of_transformers.set_verbosity_error()
    of_transformers.disable_progress_bar()
    options = {"dtype": torch.float32, "use_safetensors": True}
    try:
        return kind(str(folder), device="cpu", local_files_only=True, model_kwargs=options)
    except Exception as error:  # as many errors as a folder can be damaged in
        raise unread(name, error) from None


def unread(name: str, error: Exception) -> UserError:
    """The refusal of a model that sentence-transformers does not read."""
    return refused(name, f"sentence-transformers does not read it ({one_line(error)[:200]})")
