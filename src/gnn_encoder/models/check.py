"""Checks, before the first step of a run, that the pretrained models in its settings can be read.

A step checks its models, too, when it loads them, but some steps load them after hours of training.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.backbone import (
    check_pairs,
    configured_tokens,
    load_encoder,
    load_tokenizer,
    outline,
    published_tokens,
    readable_tokens,
)
from gnn_encoder.models.backbone_files import (
    check_files,
    check_token_vectors,
    is_trained_reranker,
    read_config,
    resolve_backbone,
    sentence_transformers_layout,
    transformer_of,
    vector_width,
)
from gnn_encoder.models.sentence_layout import QUERY
from gnn_encoder.models.trusted_code import trust
from gnn_encoder.settings.foundation import Encode, GenerateQueries, TrainCrossEncoder, TrainQueryGenerator
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import LATE_KINDS, NUMBERS, PAIR_KINDS, WORD_KINDS
from gnn_encoder.settings.shared import (
    MINILM,
    SMOLLM2,
    Backbone,
    ContrastiveTraining,
    LargeModelTraining,
    LongPassages,
    VectorsOfTexts,
    is_address,
)
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.settings.written import SelectQueries

LENGTHS = ("query_length", "passage_length")
DEFAULT_LENGTH = 128
"""Tokens of a text where a step has no setting for them."""
SERVICE_IGNORES = ("query_prompt", "passage_prompt", "truncate_dimension", "pooling")
"""Settings of an encoder that a service at an address does not take."""


def check_models(calls: Iterable[Node]) -> list[str]:
    """Returns the names of the pretrained models that some calls read.

    A model on this machine is loaded. Of a hub's model the JSON files are read, if the hub can be reached.

    Raises:
        UserError: a model would not be read as its publisher meant, or has fewer positions than a text has tokens.
    """
    models, calls = _Models(), list(calls)
    late = any(isinstance(call.settings, LongPassages) and call.settings.long_passages == "late" for call in calls)
    for call in calls:
        _check(models, call.step, call.settings)
        if late:
            _check_late(call.step, call.settings)
    return sorted(models.names)


class _Models:
    """The pretrained models of a run; each is loaded once."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._loaded: dict[str, tuple[Any, Any] | None] = {}
        self._done: set[tuple[str, ...]] = set()

    def is_new(self, use: str, name: str, *details: str) -> bool:
        """Returns whether this use of a model was not checked yet."""
        known = len(self._done)
        self.names.add(name)
        self._done.add((use, name, *details))
        return len(self._done) > known

    def loaded(self, name: str) -> tuple[Any, Any] | None:
        """An encoder and its tokenizer; None for `minilm`, and for a hub's model: only its files are checked."""
        if name not in self._loaded:
            is_here = name != MINILM and Path(resolve_backbone(name)).is_dir()
            self._loaded[name] = (load_encoder(name), load_tokenizer(name)) if is_here else None
            if not is_here:
                check_files(name)
        return self._loaded[name]

    def check_lengths(
        self,
        name: str,
        step: str,
        values: StepSettings,
        settings: Iterable[str],
        paper: Mapping[str, Any] = {},
        of_texts: bool = False,
    ) -> None:
        """Refuses more tokens of a text than an encoder has positions, or `of_texts` also than its files name.

        A default length, and the length of a re-ranker's `paper`, is cut to the positions instead.
        """
        for setting in settings:
            wanted = getattr(values, setting)
            if setting not in values.model_fields_set or wanted == paper.get(setting):
                continue
            if of_texts:
                most = published_tokens(name, wanted)
            else:
                loaded = self.loaded(name)
                most = configured_tokens(name, wanted) if loaded is None else readable_tokens(loaded[0], wanted)
            if most < wanted:
                raise UserError(
                    f"{step}.{setting} = {wanted}: backbone {name!r} reads at most {most} tokens; "
                    f"set {step}.{setting} to {most} or less"
                )

    @staticmethod
    def check_training(name: str, step: str, values: StepSettings) -> None:
        """Refuses `gradient_checkpointing` of an encoder that cannot do it."""
        if not isinstance(values, LargeModelTraining) or not values.gradient_checkpointing:
            return
        part = transformer_of(name, sentence_transformers_layout(name))
        if read_config(part) and not outline(part, of_pair=True).supports_gradient_checkpointing:
            raise UserError(f"{step}.gradient_checkpointing: the backbone {name!r} does not support it; leave it out")

    def check_texts(self, name: str, values: StepSettings) -> None:
        """Loads an encoder of texts that is on this machine, and warns if a prompt leaves little of a query."""
        read = values.model_dump(include={*VectorsOfTexts.model_fields, *LENGTHS})
        if not self.is_new("text", name, str(read)):
            return
        trust(read.get("trusted_code", ""))
        layout = sentence_transformers_layout(name, read.get("pooling", "auto"))
        for prompt in layout.unused_prompts:
            warn(f"{name}: its prompt {prompt!r} is not used, as by encode_document; set passage_prompt to use it")
        if name == MINILM or not Path(resolve_backbone(name)).is_dir():
            check_files(name if name == MINILM else transformer_of(name, layout))
            return
        from gnn_encoder.models.dual_encoder import DualEncoder  # imports torch

        lengths = {length: read.pop(length, DEFAULT_LENGTH) for length in LENGTHS}
        encoders = DualEncoder.from_backbone(name, share_encoders=True, **lengths, **read)
        for encoder in (encoders.query_encoder, encoders.passage_encoder):
            if encoder.prompt and 2 * encoder.prompt_tokens > encoder.max_length:
                warn(
                    f"{name}: the prompt {encoder.prompt!r} takes {encoder.prompt_tokens} of the {encoder.max_length} "
                    f"tokens of a {encoder.side}: raise {LENGTHS[encoder.side != QUERY]}"
                )


def _check_late(step: str, values: StepSettings) -> None:
    """Refuses an encoder for late chunking that does not pool by mean."""
    name = getattr(values, "encoder" if isinstance(values, Encode) else "backbone", "")
    if name and isinstance(values, Encode | ContrastiveTraining | Rank):
        layout = sentence_transformers_layout(name, getattr(values, "pooling", "auto"))
        if not (layout.plain and layout.pooling == ("mean",)):
            raise UserError(
                f"{step}: long_passages = late needs an encoder that pools by mean, and {name!r} does not: "
                "set long_passages to windows"
            )


def warn(message: str) -> None:
    """Prints a warning."""
    print(f"warning: {message}", file=sys.stderr)


def _check(models: _Models, step: str, values: StepSettings) -> None:
    if isinstance(values, Backbone):
        models.check_texts(values.backbone, values)
        models.check_lengths(values.backbone, step, values, LENGTHS, of_texts=True)
        models.check_training(values.backbone, step, values)
        width = vector_width(values.backbone, values.truncate_dimension)
        if width and isinstance(values, ContrastiveTraining) and max(values.matryoshka, default=0) > width:
            raise UserError(f"{step}.matryoshka = {list(values.matryoshka)}: the vectors have {width} components")
    elif isinstance(values, Encode) and (not values.encoder or is_address(values.encoder)):
        if changed := [name for name in SERVICE_IGNORES if getattr(values, name) not in ("auto", "", None)]:
            usual = "null" if changed[0] == "truncate_dimension" else "auto"
            raise UserError(
                f"encode.{changed[0]} is set, and a service at an address gets texts as they are: "
                f"set encode.{changed[0]}={usual}"
            )
    elif isinstance(values, Encode):
        models.check_texts(values.encoder, values)
        models.check_lengths(values.encoder, step, values, LENGTHS, of_texts=True)
    elif isinstance(values, Rank) and values.backbone:
        models.check_texts(values.backbone, values)
    elif isinstance(values, GenerateQueries):
        models.check_texts(values.sentence_encoder, values)
    elif isinstance(values, TrainCrossEncoder | TrainReranker) and values.published:
        late = isinstance(values, TrainReranker) and values.kind in LATE_KINDS
        if models.is_new("late interaction" if late else "re-ranker", values.published):
            _check_published(values.published, late)
    elif isinstance(values, TrainCrossEncoder) or (isinstance(values, TrainReranker) and values.kind in PAIR_KINDS):
        name = values.backbone
        if models.is_new("pairs", name) and (loaded := models.loaded(name)):
            check_pairs(name, *loaded)
        models.check_lengths(name, step, values, ["pair_length"])
        models.check_training(name, step, values)
    elif isinstance(values, TrainReranker) and values.kind in LATE_KINDS:
        check_token_vectors(values.backbone)
        models.is_new("token vectors", values.backbone)
        models.check_lengths(values.backbone, step, values, LENGTHS, NUMBERS.get(values.kind, {}))
    elif isinstance(values, TrainReranker) and values.kind in WORD_KINDS and values.word_vectors == "backbone":
        models.is_new("words", values.backbone)
        models.loaded(values.backbone)
    elif isinstance(values, SelectQueries) and (name := values.agreeing_reranker):
        if models.is_new("re-ranker", name) and not is_trained_reranker(name):
            _check_published(name, late=False)
    elif isinstance(values, TrainQueryGenerator) and models.is_new("generator", values.generator):
        _check_generator(values)


def _check_published(name: str, late: bool) -> None:
    if Path(resolve_backbone(name)).is_dir():
        from gnn_encoder.models.published_late_interaction import published_late_interaction  # imports torch
        from gnn_encoder.models.published_reranker import PublishedReranker

        (published_late_interaction if late else PublishedReranker.published)(name)
    else:
        check_files(name)


def _check_generator(values: TrainQueryGenerator) -> None:
    name = values.generator
    if name in (MINILM, SMOLLM2):
        return
    if Path(resolve_backbone(name)).is_dir():
        from gnn_encoder.models.query_generator import QueryGenerator  # imports torch

        QueryGenerator.from_pretrained(
            name, values.passage_length, values.query_length, values.separator, values.instruction
        )
    else:
        check_files(name)
