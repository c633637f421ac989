"""One typed, validated settings class per step.

A paper's number is a default with its source beside it; a deviation from a paper is a setting and
says so. `presets` fills them from YAML files.
"""

from typing import Annotated, Literal, TypedDict

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MINILM = "minilm"
"""Name of the backbone that comes as a Python package (all-MiniLM-L6-v2), its digest checked."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
# Strict, or `true` would be 1.
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0.0, strict=True)]
AutoYesNo = Annotated[
    Literal["auto", "yes", "no"], BeforeValidator(lambda given: {True: "yes", False: "no"}.get(given, given))
]
"""YAML reads a bare yes or no as a boolean."""
Precision = Literal["auto", "fp32", "bf16"]


class StepSettings(BaseModel):
    """What every step's settings share: unknown keys are refused, values are fixed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Speed(TypedDict):
    """How models run over texts, as keyword arguments of the encoding functions."""

    precision: str
    tokens_per_batch: int


class Inference(StepSettings):
    """What every step that encodes or scores shares."""

    precision: Precision = "auto"
    """`auto`: bf16 where the hardware has it natively, else fp32."""
    tokens_per_batch: PositiveInt = 4096
    """Tokens, padding included, that go through a model at once."""

    @property
    def speed(self) -> Speed:
        """The two as keyword arguments."""
        return {"precision": self.precision, "tokens_per_batch": self.tokens_per_batch}


class Ingest(StepSettings):
    """Reading a data set and making it canonical."""

    dataset: str = ""
    """Path or URI of the data, an `ir_datasets:ID`, or `python-docs`. There is no default."""
    format: Literal["auto", "beir", "msmarco", "dpr", "ir_datasets", "python-docs"] = "auto"
    on_bad_rows: Literal["refuse", "drop"] = "refuse"
    dev_fraction: Fraction = 0.1
    """Share of the training queries set apart as dev where the data has no dev split."""
    packages: list[str] = []
    """python-docs: installed packages to read besides the standard library."""
    max_passages: Count = 0
    """python-docs: keep at most this many passages (whole docstrings, by a seeded draw). 0: all."""
    seed: int = 0


class Bm25Retrieve(StepSettings):
    """BM25 by bm25s: the first candidates, and a system of the final table."""

    k1: PositiveFloat = 1.5
    b: Fraction = 0.75
    stemmer: Literal["english", "none"] = "english"
    stopwords: Literal["english", "none"] = "english"
    fields: Literal["joined", "separate"] = "joined"
    """Title and text as one field, or as two whose scores add up."""
    train_depth: PositiveInt = 100
    """Hits kept for each training query (the source of negatives)."""
    eval_depth: PositiveInt = 1000
    """Hits kept for each dev and test query (R@1000 needs 1000)."""


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
    seed: int = 0
    checkpoint_seconds: PositiveFloat = 60.0
    """A checkpoint is written when this much time has passed since the last, and at each epoch's end."""


class WatchedTraining(Optimization):
    """Training of a retriever, looked at after each epoch."""

    dev_queries: Count = 200
    """Dev queries looked at after each epoch, 0: none."""
    dev_pool: PositiveInt = 2000
    """Passages they are ranked against: their positives and a seeded draw of others. Not the test figure."""


class ContrastiveTraining(WatchedTraining):
    """A dual encoder trained with the contrastive loss (eq. 2)."""

    negatives: Count = 1
    """Hard negatives per query, besides everything else in the batch."""
    share_encoders: bool = False
    """One encoder for queries and passages. The paper's are separate."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"
    """Factor on s(q, p) inside the loss. 1 is eq. 2. `auto`: 1, or 20 where vectors have unit length,
    whose dot products lie in [-1, 1] and would leave the softmax nearly flat."""


class TrainDpr(Backbone, ContrastiveTraining):
    """The dual encoder that finds candidates: BM25 negatives and in-batch negatives."""

    negative_depth: PositiveInt = 50
    """Negatives are drawn from the first hits of BM25, positives excluded."""


class DenseRetrieve(Inference):
    """Encode the corpus and search it for every query."""

    train_depth: PositiveInt = 50
    eval_depth: PositiveInt = 1000
    tokens_per_batch: PositiveInt = 4096


class TrainCrossEncoder(Optimization):
    """M_ce: a linear head on [CLS], positives against retrieved negatives, pointwise."""

    backbone: str = "bert-base-uncased"
    head_learning_rate: PositiveFloat = 1e-3
    """Of the new linear head, which starts at random."""
    pair_length: PositiveInt = 160
    """Tokens of `[CLS] query [SEP] passage [SEP]`: a query has at most half of them, the passage the rest."""
    negatives: PositiveInt = 4
    """Negatives per positive, drawn anew each epoch."""
    negative_depth: PositiveInt = 50
    """They come from the first hits of DPR and of BM25."""
    dev_queries: Count = 200
    """Dev queries whose candidates are re-ranked after each epoch, 0: none."""


class ScoreCandidates(Inference):
    """Scores and [CLS] vectors of the candidates, once per distinct pair."""

    candidates: PositiveInt = 50
    """Candidates per training query, from DPR and BM25 in turn by rank; labelled positives always among them."""
    tokens_per_batch: PositiveInt = 4096


class TrainQueryGenerator(Optimization):
    """Positive passage → query (SS-BERT: BART-base, 5 epochs, batch 64, dropout 0.1)."""

    generator: str = "facebook/bart-base"
    """A Hugging Face seq2seq, or an encoder (`minilm`), which becomes an encoder–decoder pair."""
    passage_length: PositiveInt = 256
    query_length: PositiveInt = 32
    max_pairs: Count = 0
    """Labelled pairs trained on, by a seeded draw. 0: all."""
    held_out: Fraction = 0.1
    """Share of the positive passages whose pairs are kept back for ROUGE (SS-BERT splits 8:1:1; dev and test
    are one here)."""
    rouge_pairs: PositiveInt = 200
    """Held-out pairs that ROUGE is computed on."""


class GenerateQueries(Inference):
    """One query per distinct negative (SS-BERT 3.2)."""

    negatives_per_query: PositiveInt = 8
    """Hard negatives per training query, highest cross-encoder rank first, that get a query."""
    max_passages: Count = 0
    """Distinct negatives that get a query, by a seeded draw. 0: all."""
    beams: PositiveInt = 1
    sentence_encoder: str = MINILM
    """sim(q, q_G) is the cosine of this model's sentence embeddings."""
    seed: int = 0
    negative_below: Fraction = 0.1
    """As in `select_training_set`: only hard negatives are written about."""


class SelectTrainingSet(StepSettings):
    """Denoising (RocketQA), negative selection and augmentation (SS-BERT)."""

    negative_below: Fraction = 0.1
    """A candidate whose probability lies below is a hard negative."""
    positive_above: Fraction = 0.9
    """A candidate whose probability lies above is a denoised positive."""
    negatives_per_example: PositiveInt = 8
    """Hard negatives stored with an example; training draws from them."""
    selection: bool = True
    """Add the triples whose negative's generated query resembles the query."""
    selection_mix: Literal["equal", "once"] = "equal"
    """`equal`: mixed 1:1 with the originals (SS-BERT), repeated where there are fewer of them; `once`: each
    once, for runs in which few negatives got a generated query."""
    selection_threshold: Fraction = 0.3
    """t_G."""
    augmentation: bool = True
    """Turn unlike negatives into new positives of their generated query."""
    augmentation_threshold: Fraction = 0.1
    """t_A."""
    seed: int = 0


class TrainDualEncoder(Backbone, ContrastiveTraining):
    """M_de, the initial dual encoder (10 epochs, warm-up 0.1, lr 2e-5)."""

    start_from: Literal["backbone", "dpr"] = "backbone"


class BuildGraph(Inference):
    """The query–passage graph (GNN-encoder 3.2)."""

    neighbors: PositiveInt = 25
    """k: passages per training query, the first under M_de."""
    edges: Literal["retrieved", "retrieved+labelled"] = "retrieved"
    """The paper's edges, or each training query's labelled positives too, marked as such."""
    retrieved: PositiveInt = 50
    """Passages per training query that are kept with the graph, the first under M_de (`train_gnn.hard_negatives`)."""
    edge_features: Literal["cross_encoder", "none"] = "cross_encoder"
    """`none` is the ablation "without edge features"."""
    self_loop_features: Literal["learned", "cross_encoder"] = "learned"
    """One trained vector per node type, or M_ce's [CLS] of the pair (x, x) (the paper's count)."""
    tokens_per_batch: PositiveInt = 4096


class TrainGnn(WatchedTraining):
    """Masked Graph Training, dual encoder and GNN jointly (GNN-encoder 3.4, Algorithm 1)."""

    epochs: PositiveInt = 5
    learning_rate: PositiveFloat = 2e-6
    """Of the two encoders."""
    gnn_learning_rate: PositiveFloat = 5e-5
    negatives: Count = 1
    hard_negatives: Literal["selected", "retrieved"] = "selected"
    """Where they are drawn from: the training set, or what M_de retrieved, known positives left out. Few of
    the former are the query's neighbours in the graph, so little is there for the GNN to tell apart."""
    heads: PositiveInt = 4
    negative_slope: Fraction = 0.2
    activation: Literal["identity", "elu"] = "identity"
    """σ of eq. 5."""
    layers: Literal[0, 1, 2] = 2
    """1 is the ablation "one layer": the passage side only, over E_Q(q); 0 is "without GNN": h'_p = h_p."""
    gate: Literal["filter", "fixed"] = "filter"
    """`fixed` is the ablation "without filter gate": h'_p = gate_alpha · h~_p + h_p."""
    gate_alpha: Fraction = 0.5
    mask: Literal["folds", "sample", "none"] = "folds"
    """`folds`: an epoch visits every query once, over disjoint folds; `sample`: each round draws its
    queries afresh (the paper's wording); `none` is the ablation "without MGT": all queries in the
    graph, the edges from training queries to their positives dropped."""
    mask_fraction: Annotated[float, Field(gt=0.0, le=0.9)] = 0.05
    """β, the share of queries that a round trains on and takes out of the graph. `folds` has round(1/β) of
    them, so at most 0.5 there."""
    start: Literal["random", "mean"] = "random"
    """The GNN's first weights: Xavier (the paper names none), or a plain attention mean behind a gate
    that is open by sigmoid(gate_bias), so that training starts near M_de."""
    gate_bias: float = -2.0
    """Of `start: mean`."""
    max_queries_per_passage: Count = 0
    """Neighbour queries of a passage in training, by a seeded draw. 0: all, as in encoding."""
    normalize_passages: AutoYesNo = "auto"
    """Scale h'_p to unit length. `auto`: where the backbone's own vectors have unit length."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"

    @pydantic.model_validator(mode="after")
    def _folds_mask_at_most_half(self) -> "TrainGnn":
        if self.mask == "folds" and self.mask_fraction > 0.5:
            raise ValueError("mask_fraction above 0.5 needs mask: sample (two folds are the fewest there can be)")
        return self


class EncodeCorpus(Inference):
    """h'_p of all passages by the full graph, and the index over them."""

    chunk: PositiveInt = 8192
    """Passages propagated at a time. The result does not depend on it."""


class Evaluate(Inference):
    """Dev and test figures of every system."""

    untrained_backbone: str = MINILM
    """Also a row of the table. Empty: no such row."""
    depth: Annotated[int, Field(ge=1000, strict=True)] = 1000
    """Hits of each system that are measured; R@1000 needs 1000."""
    permutations: PositiveInt = 10000
    """Of the paired randomization test against M_de."""
    seed: int = 0


class Promote(StepSettings):
    """Registers the bundle and decides whether it becomes the champion."""

    model_name: Annotated[str, Field(pattern=r"^[\w. -]+$")] = "gnn-encoder"
    """Of the registered model: letters, digits, spaces, `.`, `_`, `-`."""
    measure: Literal["RR@10", "nDCG@10", "AP", "R@5", "R@20", "R@50", "R@100", "R@1000"] = "RR@10"
    """Test measure that the rule looks at. RR@10 and AP are the table's MRR@10 and MAP."""
    minimum_gain: float = 0.0
    """How far the GNN-encoder must lie above the plain dual encoder."""


class Settings(StepSettings):
    """All steps' settings, in the pipeline's order. Field names are the steps' names."""

    ingest: Ingest = Ingest()
    bm25_retrieve: Bm25Retrieve = Bm25Retrieve()
    train_dpr: TrainDpr = TrainDpr()
    dense_retrieve: DenseRetrieve = DenseRetrieve()
    train_cross_encoder: TrainCrossEncoder = TrainCrossEncoder()
    score_candidates: ScoreCandidates = ScoreCandidates()
    train_query_generator: TrainQueryGenerator = TrainQueryGenerator()
    generate_queries: GenerateQueries = GenerateQueries()
    select_training_set: SelectTrainingSet = SelectTrainingSet()
    train_dual_encoder: TrainDualEncoder = TrainDualEncoder()
    build_graph: BuildGraph = BuildGraph()
    train_gnn: TrainGnn = TrainGnn()
    encode_corpus: EncodeCorpus = EncodeCorpus()
    evaluate: Evaluate = Evaluate()
    promote: Promote = Promote()

    @pydantic.model_validator(mode="after")
    def _negatives_are_one_set(self) -> "Settings":
        if self.generate_queries.negative_below != self.select_training_set.negative_below:
            raise ValueError(
                "generate_queries.negative_below and select_training_set.negative_below must be equal: "
                "set it under shared"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _every_system_is_ranked_as_deep(self) -> "Settings":
        for step in ("bm25_retrieve", "dense_retrieve"):
            if getattr(self, step).eval_depth < self.evaluate.depth:
                raise ValueError(
                    f"{step}.eval_depth must be at least evaluate.depth ({self.evaluate.depth}): "
                    "a shorter ranking would not compare"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _going_on_from_dpr_is_the_same_model(self) -> "Settings":
        if self.train_dual_encoder.start_from == "dpr":
            for key in (*Backbone.model_fields, "share_encoders"):
                if getattr(self.train_dual_encoder, key) != getattr(self.train_dpr, key):
                    raise ValueError(
                        f"train_dual_encoder.{key} must equal train_dpr.{key} with start_from: dpr "
                        "(set it under shared), or start from the backbone"
                    )
        return self


STEPS: tuple[str, ...] = tuple(Settings.model_fields)
"""The steps' names, in the pipeline's order."""


def step_settings(step: str) -> type[StepSettings]:
    """The settings class of a step."""
    annotation = Settings.model_fields[step].annotation
    assert isinstance(annotation, type)
    return annotation
