"""What the files that sentence-transformers writes beside a model say about how its vectors are computed.

Each module and each key of a folder can change every vector. So only the modules and keys listed here are accepted; any
other is refused by its name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the Transformer module's file. The first file that has a content counts."""
TRANSFORMER, POOLING, NORMALIZE = "Transformer", "Pooling", "Normalize"
READ_POOLINGS = ("cls", "mean")
LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of sentence-transformers before 5.4, each with its pooling. Later versions write `pooling_mode`."""
EMPTY: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""
Read = Callable[[str], Any]
"""Returns the parsed JSON of a file in the model's folder; None if the file is missing."""


class NotUnderstood(Exception):
    """Why a model would be read otherwise than its publisher meant."""


class Module(NamedTuple):
    """An entry of modules.json."""

    kind: str
    """`Transformer` for sentence-transformers' class of that name; the whole name of another package's class."""
    path: str
    inputs: list[str]
    """Further arguments that the caller gives the module."""


def text_layout(read: Read, pooling: str = "auto") -> tuple[str | None, bool]:
    """Returns the pooling (None: the files do not say) and whether vectors have unit length.

    Vectors that are compared by their cosine have unit length, too, because the search compares by inner product.

    Args:
        pooling: `auto`, or a pooling that is taken whatever the files say.

    Raises:
        NotUnderstood: the files ask for something that is not done; with all reasons.
    """
    modules = _modules(read)
    if modules is None:
        return None, False
    settings = _object(read, SETTINGS)
    reasons = [*_wrong_modules(modules), *_wrong_transformer(read), *_wrong_settings(settings)]
    modes = [pooling]
    for module in modules:
        file = f"{module.path}/config.json"
        if module.kind == NORMALIZE:
            names = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
            reasons += _wrong_keys(file, _object(read, file), set(), names)
        elif module.kind == POOLING:
            config = _object(read, file)
            modes = modes if pooling != "auto" else _poolings(config)
            reasons += _wrong_pooling(file, config, modes)
    if reasons:
        raise NotUnderstood("; ".join(reasons))
    return modes[0], len(modules) > 2 or settings.get("similarity_fn_name") == "cosine"


def other_modules(read: Read) -> list[str]:
    """Returns the modules that compute something else than token vectors, one vector of them, and its unit length."""
    return _others(_modules(read) or [])


def lower_cases(read: Read) -> bool:
    """Returns whether texts are put in lower case before the tokenizer reads them."""
    return bool(read(MODULES) is not None and _transformer_config(read)[1].get("do_lower_case"))


def _modules(read: Read) -> list[Module] | None:
    entries = read(MODULES)
    if entries is None:
        return None
    modules = []
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise NotUnderstood(f"its {MODULES} is not a list of modules")
        name, inputs = entry["type"], entry.get("kwargs") or []
        kind = name.rsplit(".", 1)[-1] if name.startswith("sentence_transformers.") else name
        modules.append(Module(kind, entry["path"], [str(argument) for argument in inputs]))
    return modules


def _others(modules: list[Module]) -> list[str]:
    return [module.kind for module in modules if module.kind not in (TRANSFORMER, POOLING, NORMALIZE)]


def _wrong_modules(modules: list[Module]) -> Iterator[str]:
    kinds = [module.kind for module in modules]
    if unknown := _others(modules):
        yield f"{MODULES} has {', '.join(unknown)}"
    elif kinds[:2] != [TRANSFORMER, POOLING] or set(kinds[2:]) - {NORMALIZE}:
        yield f"{MODULES} has {', '.join(kinds) or 'no module'}, and not {TRANSFORMER}, {POOLING}, {NORMALIZE}"
    for module in modules:
        if module.inputs:
            yield f"{MODULES} gives {module.kind} the inputs {', '.join(module.inputs)}"
        if module.kind == TRANSFORMER and module.path not in ("", ".", "./"):
            yield f"{MODULES} has its {TRANSFORMER} in the folder {module.path!r}"


def _transformer_config(read: Read) -> tuple[str, dict[str, Any]]:
    """Returns the Transformer module's file and its content, which is empty if there is no file."""
    return next(
        ((file, config) for file in TRANSFORMER_CONFIGS if (config := _object(read, file))),
        (TRANSFORMER_CONFIGS[0], {}),
    )


def _wrong_transformer(read: Read) -> Iterator[str]:
    required = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    }
    # `lower_cases` reads do_lower_case. The lengths of texts are settings.
    return _wrong_keys(*_transformer_config(read), {"max_seq_length", "do_lower_case", "unpad_inputs"}, required)


def _wrong_settings(config: Mapping[str, Any]) -> Iterator[str]:
    prompts, similarity = config.get("prompts") or {}, config.get("similarity_fn_name")
    texts = prompts.items() if isinstance(prompts, dict) else [("prompts", prompts)]
    if named := [str(name) for name, text in texts if text]:
        yield f"{SETTINGS} has prompts ({', '.join(named)})"
    if similarity not in (None, "cosine", "dot"):
        yield f"{SETTINGS} compares by {similarity} (similarity_fn_name), which no search here does"
    known = {"__version__", "prompts", "default_prompt_name", "similarity_fn_name"}
    yield from _wrong_keys(SETTINGS, config, known, {"model_type": "SentenceTransformer"})


def _poolings(config: Mapping[str, Any]) -> list[str]:
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]


def _wrong_pooling(file: str, config: Mapping[str, Any], modes: list[str]) -> Iterator[str]:
    if not config:
        yield f"{file} is missing or empty"
    if len(modes) != 1 or modes[0] not in READ_POOLINGS:
        yield f"{file} pools by {' and '.join(modes)}, and not by cls or mean"
    # include_prompt changes vectors of texts with a prompt alone, and prompts are refused.
    known = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *LEGACY_POOLINGS}
    yield from _wrong_keys(file, config, known, {})


def _wrong_keys(file: str, config: Mapping[str, Any], known: set[str], required: Mapping[str, Any]) -> Iterator[str]:
    """Yields each key that is not in `known` and has neither its required value nor an empty one."""
    for key, value in config.items():
        if key not in known and value not in EMPTY and (key not in required or value != required[key]):
            yield f"{file} sets {key} to {str(value)[:60]!r}"


def _object(read: Read, file: str) -> dict[str, Any]:
    """Returns the content of a file; empty if it is missing."""
    content = read(file)
    if content is not None and not isinstance(content, dict):
        raise NotUnderstood(f"{file} is not a JSON object")
    return content or {}
