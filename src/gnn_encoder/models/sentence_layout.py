"""What the files that sentence-transformers writes beside a model say about how its vectors are computed.

Each module and each key of a folder can change every vector. So only the modules and keys listed here are accepted; any
other is refused by its name.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the Transformer module's file. The first file that has a content counts."""
TRANSFORMER, POOLING, NORMALIZE = "Transformer", "Pooling", "Normalize"
KEYS: dict[str, set[str]] = {
    TRANSFORMER: set(),
    POOLING: {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt"},
    NORMALIZE: {"module_input_name", "module_output_name"},
    "Dense": {
        "in_features", "out_features", "bias", "activation_function", "use_residual", "module_input_name",
        "module_output_name",
    },
    "LayerNorm": {"dimension"},
    "Dropout": {"dropout"},
}  # fmt: skip
"""Modules that are read, each with the keys of its config.json. `models.published` has their classes."""
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of sentence-transformers before 5.4, each with its pooling. Later versions write `pooling_mode`."""
QUERY, DOCUMENT = "query", "document"
"""Names of the prompts that `encode_query` and `encode_document` of sentence-transformers put before a text."""
KNOWN_PROMPTS: tuple[tuple[str, dict[str, str]], ...] = (
    (r"(multilingual-)?e5-(small|base|large)(-v2)?", {QUERY: "query: ", DOCUMENT: "passage: "}),
    (
        r"bge-(small|base|large)-en(-v1\.5)?",
        {QUERY: "Represent this sentence for searching relevant passages: "},
    ),
    (r"bge-(small|base|large)-zh(-v1\.5)?", {QUERY: "为这个句子生成表示以用于检索相关文章："}),
)
"""Last part of a model's name → the prompts of its model card, for models whose files have none."""
VECTOR = "sentence_embedding"
"""What sentence-transformers calls a text's vector."""
HARMLESS = {
    **{key: {"dtype", "torch_dtype", "attn_implementation"} for key in ("model_args", "model_kwargs")},
    **{key: {"padding_side"} for key in ("tokenizer_args", "processor_kwargs")},
}
"""Arguments of the Transformer that change no vector here: weights are read in fp32, and padding is not read."""
TOKENIZER, UNLIMITED = "tokenizer_config.json", 10**9
"""The file that names the length of texts where the Transformer's file does not, and a number that means none."""
EMPTY: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""
Read = Callable[[str], Any]
"""Returns the parsed JSON of a file in the model's folder; None if the file is missing."""


class NotUnderstood(Exception):
    """Why a model would be read otherwise than its publisher meant."""


class Module(NamedTuple):
    """An entry of modules.json, with its config.json."""

    kind: str
    """`Transformer` for sentence-transformers' class of that name; the whole name of another package's class."""
    path: str
    inputs: list[str]
    """Further arguments that the caller gives the module."""
    config: Mapping[str, Any]


@dataclass(frozen=True)
class TextLayout:
    """How a text becomes a vector. The defaults are those of a folder without files of sentence-transformers."""

    pooling: tuple[str, ...] = ()
    """Several are concatenated; none: the files do not say."""
    normalize: bool = False
    """Vectors that are compared by their cosine have unit length, too, because the search compares by inner product."""
    modules: tuple[Module, ...] = ()
    """What follows the Transformer, without `Normalize` at the end."""
    prompts: dict[str, str] = field(default_factory=dict)
    has_prompts: bool = False
    """Whether the files have prompts, which may be empty."""
    unused_prompts: tuple[str, ...] = ()
    """Names of prompts for passages that `encode_document` does not use, because it uses `document`."""
    max_tokens: int | None = None
    dimension: int | None = None
    """Components of a vector that are kept, the first ones; None: all."""
    transformer: str = ""
    """The Transformer's folder inside the model's."""

    @property
    def plain(self) -> bool:
        """Whether the vector is the pooled one, by `[CLS]` or mean, for which no module is needed."""
        alone = [module.kind for module in self.modules] in ([], [POOLING])
        includes = all(module.config.get("include_prompt", True) for module in self.modules)
        return alone and includes and self.pooling in (("cls",), ("mean",))

    def width(self, hidden: int) -> int:
        """Components of a vector, from the width of a token's."""
        for module in self.modules:
            if module.kind == POOLING:
                hidden *= len(self.pooling)
            elif module.kind == "Dense" and isinstance(module.config.get("out_features"), int):
                hidden = module.config["out_features"]
        return min(hidden, self.dimension or hidden)


def text_layout(read: Read, pooling: str = "auto") -> TextLayout:
    """Returns how texts become vectors.

    Args:
        read: reads a file.
        pooling: `auto`, or a pooling that is taken whatever the files say.

    Raises:
        NotUnderstood: the files ask for something that is not done; with all reasons.
    """
    modules = _modules(read)
    wanted = () if pooling == "auto" else (pooling,)
    if modules is None:
        return TextLayout(wanted)
    settings, path = _object(read, SETTINGS), modules[0].path.strip("./") if modules else ""
    file, transformer = _transformer_config(read, path)
    reasons = [*_wrong_modules(modules), *_wrong_transformer(file, transformer), *_wrong_settings(settings)]
    modes: tuple[str, ...] = ()
    for number, module in enumerate(modules[1:], 1):
        if module.kind in KEYS:
            file, config = f"{module.path}/config.json", _object(read, f"{module.path}/config.json")
            modules[number] = module._replace(config=config)
            if module.kind == POOLING:
                modes = wanted or tuple(_poolings(config))
            reasons += _wrong_module(module.kind, file, config, modes)
    if reasons:
        raise NotUnderstood("; ".join(reasons))
    following = modules[1:]
    while following[-1].kind == NORMALIZE and following[-1].config.get("module_input_name", VECTOR) == VECTOR:
        following.pop()
    prompts, length = settings.get("prompts") or {}, transformer.get("max_seq_length")
    if length is None:
        length = _object(read, f"{path}/{TOKENIZER}" if path else TOKENIZER).get("model_max_length")
    return TextLayout(
        modes,
        len(following) < len(modules) - 1 or settings.get("similarity_fn_name") == "cosine",
        tuple(following),
        {name: prompts[name] for name in (QUERY, DOCUMENT) if prompts.get(name)},
        settings.get("prompts") is not None,
        tuple(name for name in ("passage", "corpus") if prompts.get(name) and not prompts.get(DOCUMENT)),
        length if isinstance(length, int) and 0 < length < UNLIMITED else None,
        settings.get("truncate_dim"),
        path,
    )


def known_prompts(name: str) -> dict[str, str]:
    """Returns the prompts of `KNOWN_PROMPTS` for a model's name or folder, also one in a hub's cache."""
    if in_cache := re.search(r"(?:^|/)models--([^/]+)/snapshots/[^/]+/?$", name):
        name = in_cache[1].replace("--", "/")
    last = name.rstrip("/").rsplit("/", 1)[-1]
    return next((prompts for pattern, prompts in KNOWN_PROMPTS if re.fullmatch(pattern, last, re.IGNORECASE)), {})


def other_modules(read: Read) -> list[str]:
    """Returns the modules that compute something else than token vectors, one vector of them, and its unit length."""
    return [module.kind for module in _modules(read) or () if module.kind not in (TRANSFORMER, POOLING, NORMALIZE)]


def lower_cases(read: Read) -> bool:
    """Returns whether texts are put in lower case before the tokenizer reads them."""
    return bool(_transformer_config(read, "")[1].get("do_lower_case"))


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
        modules.append(Module(kind, entry["path"], [str(argument) for argument in inputs], {}))
    return modules


def _wrong_modules(modules: list[Module]) -> Iterator[str]:
    kinds = [module.kind for module in modules]
    if unknown := [kind for kind in kinds if kind not in KEYS]:
        yield f"{MODULES} has {', '.join(unknown)}"
    elif kinds[:1] != [TRANSFORMER] or TRANSFORMER in kinds[1:] or kinds.count(POOLING) != 1:
        yield f"{MODULES} has {', '.join(kinds) or 'no module'}, and not one {TRANSFORMER} and then one {POOLING}"
    for module in modules:
        if module.inputs:
            yield f"{MODULES} gives {module.kind} the inputs {', '.join(module.inputs)}"


def _transformer_config(read: Read, path: str) -> tuple[str, dict[str, Any]]:
    """Returns the Transformer module's file and its content, which is empty if there is no file."""
    files = [f"{path}/{file}" if path else file for file in TRANSFORMER_CONFIGS]
    return next(((file, config) for file in files if (config := _object(read, file))), (files[0], {}))


def _wrong_transformer(file: str, config: Mapping[str, Any]) -> Iterator[str]:
    required = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    }
    for key, keeps in HARMLESS.items():
        if isinstance(config.get(key), dict):
            config = {**config, key: {name: value for name, value in config[key].items() if name not in keeps}}
    return _wrong_keys(file, config, {"max_seq_length", "do_lower_case", "unpad_inputs"}, required)


def _wrong_settings(config: Mapping[str, Any]) -> Iterator[str]:
    prompts, similarity = config.get("prompts") or {}, config.get("similarity_fn_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        yield f"{SETTINGS} has prompts that are no texts"
    if similarity not in (None, "cosine", "dot"):
        yield f"{SETTINGS} compares by {similarity} (similarity_fn_name), which no search here does"
    kept = config.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or kept < 1):
        yield f"{SETTINGS} sets truncate_dim to {kept!r}"
    known = {"__version__", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"}
    yield from _wrong_keys(SETTINGS, config, known, {"model_type": "SentenceTransformer"})


def _poolings(config: Mapping[str, Any]) -> list[str]:
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]


def _wrong_module(kind: str, file: str, config: Mapping[str, Any], modes: tuple[str, ...]) -> Iterator[str]:
    if kind == POOLING and not config:
        yield f"{file} is missing or empty"
    elif kind == POOLING and (not modes or set(modes) - {*POOLINGS}):
        yield f"{file} pools by {' and '.join(modes) or 'nothing'}, and not by {', '.join(POOLINGS)}"
    elif kind == "Dense" and not str(activation := config.get("activation_function", "torch.")).startswith("torch."):
        yield f"{file} names the function {activation}, which is no module of torch"
    yield from _wrong_keys(file, config, KEYS[kind] | (set(LEGACY_POOLINGS) if kind == POOLING else set()), {})


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
