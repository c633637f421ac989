"""What several steps' settings share: value types, and how models run, read texts and are trained."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

MINILM = "minilm"
"""Name of the backbone that comes as a Python package (all-MiniLM-L6-v2), its digest checked."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
# Strict, or `true` would be 1.
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0.0, strict=True)]
AutoYesNo = Annotated[
    Literal["auto", "yes", "no"],
    BeforeValidator(lambda given: ("yes" if given else "no") if isinstance(given, bool) else given),
]
"""YAML reads a bare yes or no as a boolean."""
Precision = Literal["auto", "fp32", "bf16"]
SMALLEST, LARGEST = 1e-30, 2**31 - 1
"""Least and largest absolute value of any number but 0. Row numbers and FAISS' parameters are int32, models fp32."""


def known_names(name: object, known: Iterable[str]) -> str:
    """What to say of a name that is none of the known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}known are {', '.join(names)}"


class Checked(BaseModel):
    """What all settings share: unknown keys are refused, values are fixed once made.

    Every number is 0 or lies from `SMALLEST` to `LARGEST`: others would fail in their step, hours later. NaN and
    infinity would reach it as JSON's null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        for part in parts:
            if isinstance(part, int | float) and part and not SMALLEST <= abs(part) <= LARGEST:
                raise ValueError(f"must have an absolute value from {SMALLEST} to {LARGEST:,}, or be 0")
            if isinstance(part, str) and "\0" in part:
                raise ValueError("holds a NUL character, which no name or path may have")
        return value


class StepSettings(Checked):
    """What every step's settings share."""


class Speed(TypedDict):
    """How models run over texts, as keyword arguments of the encoding functions."""

    precision: Precision
    tokens_per_batch: int


class Inference(StepSettings):
    """What every step that encodes or scores shares."""

    precision: Precision = "auto"
    """`auto`: bf16 where the hardware has it natively, else fp32."""
    tokens_per_batch: PositiveInt = 4096
    """Tokens that go through a model at once, fewer filled up to them. Vectors follow it in how they are rounded."""

    @property
    def speed(self) -> Speed:
        """The two as keyword arguments."""
        return {"precision": self.precision, "tokens_per_batch": self.tokens_per_batch}


class Lexical(StepSettings):
    """How BM25 cuts texts into terms and scores them."""

    k1: PositiveFloat = 1.5
    """Saturation of the term frequency."""
    b: Fraction = 0.75
    """Share of length normalisation."""
    stemmer: Literal["english", "none"] = "english"
    stopwords: Literal["english", "none"] = "english"
    fields: Literal["joined", "separate"] = "joined"
    """Title and text as one field, or as two whose scores add up."""


class Backbone(StepSettings):
    """Which pretrained encoder to start from and how to read a vector off it."""

    backbone: str = "bert-base-uncased"
    """A Hugging Face name, a local folder, or `minilm`."""
    pooling: Literal["auto", "cls", "mean"] = "auto"
    """`auto`: as the backbone's sentence-transformers files say, else `[CLS]` (GNN-encoder 3.2)."""
    normalize: AutoYesNo = "auto"
    """Unit-length vectors. `auto`: as the backbone's sentence-transformers files say, else no."""
    query_length: PositiveInt = 32
    """Tokens of a query, special tokens included."""
    passage_length: PositiveInt = 128
    """Tokens of title and text, special tokens included."""


class Optimization(StepSettings):
    """What every training step shares. AdamW, linear schedule with warm-up (GNN-encoder 4.3)."""

    epochs: PositiveInt = 10
    batch_size: PositiveInt = 64
    """Queries (or pairs) in a batch."""
    learning_rate: PositiveFloat = 2e-5
    warmup: Fraction = 0.1
    """Share of all steps in which the learning rate rises to its full value."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    max_gradient_norm: PositiveFloat = 1.0
    dropout: Fraction | Literal["backbone"] = "backbone"
    """Of every dropout in the model; `backbone`: as its config says (0.1 for BERT and BART). 0 trains up to
    1.9 times as fast on a CPU, whose fused attention has no dropout."""
    precision: Precision = "auto"
    """`auto`: bf16 autocast where the hardware has it natively, else fp32."""
    seed: Count = 0
    checkpoint_seconds: PositiveFloat = 60.0
    """A checkpoint is written when this much time has passed since the last, and at each epoch's end."""
    workers: Annotated[Count, Field(le=1024)] = 0
    """Processes that make batches beside the training, for each process that trains; 0: a thread of its own. The
    batches are the same. They pay where a GPU waits for the neighbours to be sampled."""


class MeasuredTraining(Optimization):
    """Training that is measured on dev queries after each epoch."""

    dev_queries: Count = 200
    """Dev queries that are measured after each epoch, 0: none."""
    keep: Literal["last", "best"] = "last"
    """The epoch whose weights are kept: the last, or the earliest of those with the highest MRR@10 on the dev queries
    (BERT-DMN 5.2 validates by MAP)."""


class WatchedTraining(MeasuredTraining):
    """Training of a retriever."""

    dev_pool: PositiveInt = 2000
    """Passages they are ranked against: their positives and a seeded draw of others. Not the test figure."""
    processes: Annotated[PositiveInt, Field(le=1024)] = 1
    """Processes that train together, each with a GPU of its own, or on a CPU with a share of the cores: each encodes
    its share of a batch, the negatives are the whole batch's (cross-device negatives)."""
    gradient_cache: bool = False
    """Run the encoders over a batch in parts, twice: any batch size in the memory of a part, the same gradients,
    a third to a half more time (Gao et al., 2021)."""


class ContrastiveTraining(WatchedTraining):
    """A dual encoder trained with the contrastive loss (eq. 2)."""

    negatives: Count = 1
    """Hard negatives per query, besides everything else in the batch."""
    share_encoders: bool = False
    """One encoder for queries and passages. The paper's are separate."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"
    """Factor on s(q, p) inside the loss. 1 is eq. 2. `auto`: 1, or 20 where vectors have unit length,
    whose dot products lie in [-1, 1] and would leave the softmax nearly flat."""
