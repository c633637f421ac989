"""Checks, before the first step of a run, that the pretrained models in its settings can be read.

A step checks its models, too, when it loads them, but some steps load them after hours of training.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.backbone import (
    check_files,
    check_pairs,
    check_text_tokens,
    check_token_vectors,
    load_encoder,
    load_tokenizer,
    outline,
    read_config,
    readable_tokens,
    resolve_backbone,
    sentence_transformers_layout,
)
from gnn_encoder.settings.foundation import Encode, GenerateQueries, TrainCrossEncoder, TrainQueryGenerator
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import LATE_KINDS, NUMBERS, PAIR_KINDS, WORD_KINDS
from gnn_encoder.settings.shared import MINILM, SMOLLM2, Backbone, is_address
from gnn_encoder.settings.values import StepSettings

LENGTHS = ("query_length", "passage_length")


def check_models(calls: Iterable[Node]) -> list[str]:
    """Returns the names of the pretrained models that some calls read.

    A model on this machine is loaded. Of a hub's model the JSON files are read, if the hub can be reached.

    Raises:
        UserError: a model would not be read as its publisher meant, or has fewer positions than a text has tokens.
    """
    models = _Models()
    for call in calls:
        _check(models, call.step, call.settings)
    return sorted(models.names)


class _Models:
    """The pretrained models of a run; each is loaded once."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._loaded: dict[str, tuple[Any, Any] | None] = {}
        self._done: set[tuple[str, ...]] = set()

    def is_new(self, use: str, name: str, *more: str) -> bool:
        """Returns whether this use of a model was not checked yet."""
        known = len(self._done)
        self.names.add(name)
        self._done.add((use, name, *more))
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
        self, name: str, step: str, values: StepSettings, settings: Iterable[str], paper: Mapping[str, Any] = {}
    ) -> None:
        """Refuses more tokens of a text than an encoder has positions.

        A default length, and the length of a re-ranker's `paper`, is cut to the positions instead.
        """
        for setting in settings:
            wanted = getattr(values, setting)
            if setting not in values.model_fields_set or wanted == paper.get(setting):
                continue
            loaded = self.loaded(name)
            most = self._positions(name, wanted) if loaded is None else readable_tokens(loaded[0], wanted)
            if most < wanted:
                raise UserError(
                    f"{step}.{setting} = {wanted}: backbone {name!r} reads at most {most} tokens; "
                    f"set {step}.{setting} to {most} or less"
                )

    @staticmethod
    def _positions(name: str, wanted: int) -> int:
        config = read_config(name)
        if name == MINILM:  # needs no import of transformers
            return min(wanted, int(config["max_position_embeddings"]))
        return readable_tokens(outline(name), wanted) if config else wanted


def _check(models: _Models, step: str, values: StepSettings) -> None:
    if isinstance(values, Backbone):
        _check_text(models, values.backbone, values.pooling)
        models.check_lengths(values.backbone, step, values, LENGTHS)
    elif isinstance(values, Encode) and (not values.encoder or is_address(values.encoder)):
        return  # nothing is loaded here
    elif isinstance(values, Encode):
        _check_text(models, values.encoder, values.pooling)
        models.check_lengths(values.encoder, step, values, LENGTHS)
    elif isinstance(values, Rank) and values.backbone:
        _check_text(models, values.backbone, "auto")
    elif isinstance(values, GenerateQueries):
        _check_text(models, values.sentence_encoder, "auto")
    elif isinstance(values, TrainCrossEncoder | TrainReranker) and values.published:
        late = isinstance(values, TrainReranker) and values.kind in LATE_KINDS
        if models.is_new("late interaction" if late else "re-ranker", values.published):
            _check_published(values.published, late)
    elif isinstance(values, TrainCrossEncoder) or (isinstance(values, TrainReranker) and values.kind in PAIR_KINDS):
        name = values.backbone
        if models.is_new("pairs", name) and (loaded := models.loaded(name)):
            check_pairs(name, *loaded)
        models.check_lengths(name, step, values, ["pair_length"])
    elif isinstance(values, TrainReranker) and values.kind in LATE_KINDS:
        check_token_vectors(values.backbone)
        models.is_new("token vectors", values.backbone)
        models.check_lengths(values.backbone, step, values, LENGTHS, NUMBERS.get(values.kind, {}))
    elif isinstance(values, TrainReranker) and values.kind in WORD_KINDS and values.word_vectors == "backbone":
        models.is_new("words", values.backbone)
        models.loaded(values.backbone)
    elif isinstance(values, TrainQueryGenerator) and models.is_new("generator", values.generator):
        _check_generator(values)


def _check_published(name: str, late: bool) -> None:
    if Path(resolve_backbone(name)).is_dir():
        from gnn_encoder.models.published_late_interaction import published_late_interaction  # imports torch
        from gnn_encoder.models.published_reranker import PublishedReranker

        (published_late_interaction if late else PublishedReranker.published)(name)
    else:
        check_files(name)


def _check_text(models: _Models, name: str, pooling: str) -> None:
    if models.is_new("text", name, pooling):
        known, _ = sentence_transformers_layout(name, pooling)
        if loaded := models.loaded(name):
            check_text_tokens(name, *loaded, (known or "cls") if pooling == "auto" else pooling)


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
