"""Loading a pretrained encoder: its tokenizer and weights, and what its positions and tokens allow."""

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.machine.absent import absent
from gnn_encoder.models import sentence_layout
from gnn_encoder.models.backbone_files import (
    cannot_load,
    check_files,
    gguf_file,
    read_config,
    refused,
    resolve_backbone,
    sentence_transformers_layout,
    transformer_of,
    understood,
)  # fmt: skip
from gnn_encoder.settings.shared import MINILM

ENCODERS_OF_PAIRS = ("mt5", "t5", "umt5")
"""Models of an encoder and a decoder of which the encoder alone reads texts, as sentence-t5 does."""
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


def load_pretrained(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` for a transformers auto class. Pickled weights are read as tensors alone.

    Raises:
        UserError: an unknown name, neither network nor a cached copy, a damaged folder, or as `check_files`.
    """
    from transformers.utils import logging

    trusted = check_files(name)
    _import_accelerate()
    if file := gguf_file(name):
        options["gguf_file"] = file
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else a hub is asked to convert pickled weights
    logging.set_verbosity_error()  # no report of unread pooler weights, and no bar per load
    logging.disable_progress_bar()
    try:
        return loader.from_pretrained(resolve_backbone(name), trust_remote_code=trusted, **options)
    except Exception as error:  # a damaged or edited folder has as many errors as transformers has readers
        raise cannot_load(name, error) from None


@functools.cache
def _import_accelerate() -> None:
    """Imports accelerate, as transformers does with its models, but without boto3, which costs 0.2 s."""
    with absent("boto3"):
        importlib.import_module("accelerate")


def load_weights(
    loader: Any,
    name: str,
    unused: re.Pattern[str] = HEADS,
    spare: re.Pattern[str] | None = POOLER,
    refusal: Callable[[str], UserError] | None = None,
    **options: Any,
) -> Any:
    """As `load_pretrained`, for a model in which no weight starts at random.

    Pickled weights are unpickled by torch's `weights_only`, which makes tensors and runs no code of the file.

    Raises UserError (`refusal`, by default `refused`) with the names of the weights that the model lacks, but for those
    in `spare`, or of its weights that nothing reads, but for those in `unused`.
    """
    options |= {"weights_only": True, "output_loading_info": True}
    if file := gguf_file(name):
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(gguf_file=file, dequantize=True)  # packed weights do not train
    model, report = load_pretrained(loader, name, **options)
    lacking = [weight for weight in report["missing_keys"] if not (spare and spare.search(weight))]
    unread = [weight for weight in report["unexpected_keys"] if not unused.search(weight)]
    problems = (lacking, "its files lack the weights"), (unread, f"{type(model).__name__} does not read its weights")
    for weights, problem in problems:
        if weights:
            first, *more = sorted(weights)
            reason = f"{problem} {first}" + (f" and {len(more)} more" if more else "")
            raise refusal(reason) if refusal else refused(name, reason)
    return model


ADDRESS = "address.json"
"""The file of an encoder at an address, in place of weights (`models.address`)."""


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer of a backbone, which puts texts in lower case if the backbone's files say so."""
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, use_fast=True)
    if understood(name, sentence_layout.lower_cases) and not reads_lower_case(tokenizer):
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
        kind = type(backbone).__name__
        raise refused(name, f"{kind} does not read plain texts ({one_line(error)[:160]})") from None
    causal, bidirectional = (getattr(config, key, None) for key in ("is_causal", "use_bidirectional_attention"))
    if (causal is False or bidirectional is True) and not ahead:
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
    most = configured_tokens(transformer_of(name, layout), wanted, of_pair=True)
    return min(most, layout.max_tokens or most)


def configured_tokens(name: str, wanted: int, of_pair: bool = False) -> int:
    """As `readable_tokens`, by the config of a backbone alone, which may be missing; `of_pair` as in `load_encoder`."""
    config = read_config(name)
    if name == MINILM:  # needs no import of transformers
        return min(wanted, int(config["max_position_embeddings"]))
    return readable_tokens(outline(name, of_pair), wanted) if config else wanted


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
