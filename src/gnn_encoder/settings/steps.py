"""The settings class of each step of the training pipeline, in its order."""

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from gnn_encoder.settings import measures as names
from gnn_encoder.settings.shared import (
    MINILM,
    AutoYesNo,
    Backbone,
    ContrastiveTraining,
    Count,
    Fraction,
    Inference,
    Lexical,
    Optimization,
    PositiveFloat,
    PositiveInt,
    StepSettings,
    WatchedTraining,
)


class Ingest(StepSettings):
    """Reading a data set and making it canonical."""

    dataset: str = ""
    """Path or URI of the data, an `ir_datasets:ID`, or `python-docs`. There is no default."""
    format: Literal["auto", "beir", "msmarco", "dpr", "ir_datasets", "python-docs"] = "auto"
    on_bad_rows: Literal["refuse", "drop"] = "refuse"
    dev_fraction: Fraction = 0.1
    """Share of the training queries set apart as dev where the data has no dev split."""
    max_train_queries: Count = 0
    """Keep at most this many training queries with their labels, by a seeded draw; dev and test stay as they are, also
    where they are set apart from train. 0: all."""
    packages: tuple[str, ...] = ()
    """python-docs: installed packages to read besides the standard library."""
    max_passages: Count = 0
    """python-docs: keep at most this many passages (whole docstrings, by a seeded draw). 0: all."""
    seed: int = 0
    """Of both draws."""


class Bm25Retrieve(Lexical):
    """BM25 by bm25s: the first candidates, and a system of the final table."""

    train_depth: PositiveInt = 100
    """Hits kept for each training query (the source of negatives)."""
    eval_depth: PositiveInt = 1000
    """Hits kept for each dev and test query (R@1000 needs 1000)."""


class TrainDpr(Backbone, ContrastiveTraining):
    """The dual encoder that finds candidates: BM25 negatives and in-batch negatives."""

    negative_depth: PositiveInt = 50
    """Negatives are drawn from the first hits of BM25, positives excluded."""


class DenseRetrieve(Inference):
    """Encode the corpus and search it for every query."""

    train_depth: PositiveInt = 50
    """Hits kept for each training query (the source of negatives)."""
    eval_depth: PositiveInt = 1000
    """Hits kept for each dev and test query (R@1000 needs 1000)."""


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


class GraphShape(StepSettings):
    """Which edges the query–passage graph has, and what they carry."""

    neighbors: PositiveInt = 25
    """k: passages per training query, the first under M_de."""
    edges: Literal["retrieved", "retrieved+labelled", "labelled"] = "retrieved"
    """The paper's edges; each training query's labelled positives too, marked as such; or these alone."""
    retrieved: PositiveInt = 50
    """Passages per training query that are kept with the graph, the first under M_de (`train_gnn.hard_negatives`)."""
    edge_features: Literal["cross_encoder", "none"] = "cross_encoder"
    """`none` is the ablation "without edge features"."""
    self_loop_features: Literal["learned", "cross_encoder"] = "learned"
    """One trained vector per node type, or M_ce's [CLS] of the pair (x, x) (the paper's count)."""


class BuildGraph(Inference, GraphShape):
    """The query–passage graph (GNN-encoder 3.2)."""

    edge_feature_type: Literal["fp16", "int8"] = "fp16"
    """How they are stored: `int8`, with a scale per edge, takes half the disk and half the reading, and on ObliQA's
    graph changed no test query's first ten (benchmarks/RESULTS.md)."""
    previous: str = ""
    """Folder of an earlier run, such as ROOT/latest, with its `graph` and `passage_vectors`: what the same models made
    of texts that have not changed is carried over. Empty: all is made anew."""


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
    cache_refreshes: Count = 0
    """How often in an epoch the passage vectors of eq. 6 are made anew, by the passage encoder as it then is; encoding
    then takes its vectors there too. The first stretch of the first epoch has M_de's, so 4 in one epoch means at a
    quarter, a half and three quarters. 0: M_de's always (GNN-encoder 3.4)."""
    normalize_passages: AutoYesNo = "auto"
    """Scale h'_p to unit length. `auto`: where the backbone's own vectors have unit length."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"

    @pydantic.model_validator(mode="after")
    def _folds_mask_at_most_half(self) -> "TrainGnn":
        if self.mask == "folds" and self.mask_fraction > 0.5:
            raise ValueError("mask_fraction above 0.5 needs mask: sample (two folds are the fewest there can be)")
        return self


class EncodeCorpus(Inference, Lexical):
    """h'_p of all passages by the full graph, the index over them, and BM25's.

    How BM25 scores is as in `bm25_retrieve`, unless it is set here too.
    """

    previous: str = ""
    """Folder of an earlier run, such as ROOT/latest, with its `encoding` and `bundle`: what the same models made of
    texts that have not changed is carried over. Empty: all is made anew."""
    chunk: PositiveInt = 8192
    """Passages propagated at a time. The result does not depend on it."""
    index: Literal["flat", "flat_fp16", "sq8", "ivf", "hnsw"] = "flat"
    """What search runs over: `flat` is exact; the others trade recall, measured at build, for size or speed."""
    ivf_lists: Count = 0
    """0: four times the square root of the number of passages."""
    ivf_probes: PositiveInt = 32
    """Lists that a search looks into."""
    hnsw_links: Annotated[int, Field(ge=2, strict=True)] = 32
    """Neighbours of a passage in the graph."""
    hnsw_breadth: PositiveInt = 128
    """Candidates that a search keeps (at least the hits asked for)."""
    bm25: bool = True
    """Put a BM25 index into the bundle, so that a search can fuse the two."""


class Evaluate(Inference):
    """Dev and test figures of every system."""

    untrained_backbone: str = MINILM
    """Also a row of the table. Empty: no such row."""
    depth: Annotated[int, Field(ge=1000, strict=True)] = 1000
    """Hits of each system that are measured; R@1000 needs 1000."""
    measures: names.Measures = names.DEFAULT
    """Columns of the table, in `ir_measures`' names: a list, or a text with spaces between. The first is the
    headline's, and the one that a fusion's weight is tuned by."""
    permutations: PositiveInt = 10000
    """Of the paired randomization test against M_de."""
    resamples: PositiveInt = 2000
    """Of the queries, for the bootstrap's confidence intervals."""
    rerank_depth: Count = 0
    """Hits of the GNN-encoder that the cross-encoder orders anew, another row of the table: about the best that a
    ranking of them can be. 0: no such row. That many pairs are scored for each dev and test query."""
    run_depth: Count = 100
    """Hits of each query in the TREC runs that the report holds, 0: no such files."""
    seed: int = 0

    @pydantic.model_validator(mode="after")
    def _as_deep_as_the_measures(self) -> "Evaluate":
        for name in self.measures:
            if (names.cutoff(name) or 0) > self.depth:
                raise ValueError(f"measures has {name}, which needs depth: {names.cutoff(name)} (it is {self.depth})")
        return self


class Promote(StepSettings):
    """Registers the bundle and decides whether it becomes the champion."""

    model_name: Annotated[str, Field(pattern=r"^[\w. -]+$")] = "gnn-encoder"
    """Of the registered model: letters, digits, spaces, `.`, `_`, `-`."""
    measure: names.Measure = "RR@10"
    """Test measure that the rule looks at, one of evaluate.measures. RR@10 and AP are the table's MRR@10 and MAP."""
    minimum_gain: float = 0.0
    """How far the GNN-encoder must lie above the plain dual encoder of its own run."""
    smallest_effect: float = 0.005
    """How far it must lie above the champion on the same queries. With a negative one, and `significance: 1`, a model
    of newer data takes the place of one that is hardly better."""
    significance: Fraction = 0.05
    """Largest p of that difference, by the paired randomization test. 1: none is asked for."""
    floors: dict[names.Measure, Annotated[float, Field(ge=0.0)]] = Field(default={"R@1000": 0.01})
    """Measure → how far it may lie below the champion's."""
    largest_latency_ratio: PositiveFloat = 1.5
    """How much longer than the champion's a question may take, both measured in turn, where the step runs. An exact
    search takes longer in a corpus that grew."""
    largest_index_ratio: PositiveFloat = 1.5
    """How much larger than the champion's the index may be, for each passage."""
    bundle_store: Annotated[str, Field(pattern=r"^(s3://[^/]+/.+)?$")] = ""
    """An `s3://` address below which registered bundles are kept, each in a folder named by its digest. Empty: a
    version's bundle lies where the run left it, and is gone with that."""
