"""Settings of the steps that use trained models: encode the corpus, rank, evaluate, report and promote."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from gnn_encoder.settings.measures import COLD, DEFAULT, Floor, Measure, Measures, cutoff
from gnn_encoder.settings.shared import (
    MINILM,
    Inference,
    LongPassages,
    Sharded,
    Tasks,
    TokenVectorType,
    VectorsOfTexts,
    VectorType,
)
from gnn_encoder.settings.systems import DUAL_ENCODER, GNN_ENCODER, served_systems
from gnn_encoder.settings.values import Count, Fraction, PositiveFloat, PositiveInt, StepSettings

SCANNED = 2**28
"""Bytes of labelled queries' vectors that a search reads, one after the other: 25 ms a question on one core."""


class IndexKind(StepSettings):
    """The FAISS index of a bundle (`gnn_encoder.retrieval.index_file`)."""

    index: Literal["flat", "flat_fp16", "sq8", "ivf", "hnsw"] = "flat"
    """`flat` is exact. The other kinds lose recall and gain size or speed; the step measures the recall."""
    ivf_lists: Count = 0
    """Number of lists. 0: four times the square root of the number of passages."""
    ivf_probes: PositiveInt = 32
    """Number of lists that a search reads."""
    hnsw_links: Annotated[int, Field(ge=2, le=1024, strict=True)] = 32
    """Neighbours of a passage in the graph of the index."""
    hnsw_breadth: PositiveInt = 128
    """Candidates that a search keeps, at least as many as the requested hits."""
    index_parts: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Build the index as so many indexes over consecutive passages, one after the other: memory holds one part at a
    time. A search asks all parts and merges their hits. `flat_fp16` finds the same in any number of parts; of equal
    scores at the end of the hits FAISS keeps any. Each part of `sq8` has its own range of codes. Each part of `ivf` has
    its own centroids, `ivf_lists` of them, and each part of `hnsw` its own graph. A search reads `ivf_probes` lists of
    each part, or keeps `hnsw_breadth` candidates of each part, so more parts cost time and gain recall. `flat` builds
    no index: the setting has no effect there."""

    @property
    def of_index(self) -> dict[str, Any]:
        """The settings of the index alone."""
        return {name: getattr(self, name) for name in IndexKind.model_fields}

    def of_queries(self, size: float) -> Self:
        """The index over labelled queries, whose fp32 vectors have `size` bytes: of this kind, its lists by their
        number, and instead of `flat` an `ivf` if there are too many to read."""
        kind = "ivf" if self.index == "flat" and size > SCANNED else self.index
        return self.model_copy(update={"index": kind, "ivf_lists": 0})


class EncodeNodes(Inference, Sharded):
    """Encodes the passages and the training queries with the trained encoders."""

    previous: str = ""
    """Folder of an earlier run, as in `build_graph`, here with its `encoding`."""


class EncodeCorpus(Inference, IndexKind):
    """Computes h'_p of all passages with the full graph, and builds the vector index.

    The step `encode_nodes` encodes the texts before.
    """

    shards: Tasks = 1
    """Tasks that share the encoding, as `score_candidates.shards`."""
    previous: str = ""
    """Folder of an earlier run, as in `build_graph`, here with its `encoding` and `bundle`."""
    chunk: PositiveInt = 2048
    """Passages that a core propagates at a time. The result does not depend on this number."""
    bm25: bool = True
    """Put the BM25 index of `index_bm25` into all bundles, so that a search can fuse both rankings."""


class BundleDualEncoder(Inference, IndexKind, LongPassages):
    """Makes a bundle of a dual encoder's vectors as they are. The index is as in `encode_corpus`.

    DPR's bundle is made after the recommendation, and only if it is what the run recommends, because nothing else needs
    DPR's vectors.
    """

    system: str = DUAL_ENCODER
    """Name of the system in every table."""
    vector_type: VectorType = "fp16"
    """Storage type of vectors that the step encodes itself: `build_graph.vector_type`."""
    bm25: bool = True
    """As in `encode_corpus`."""


class BundleWords(StepSettings):
    """Makes the bundle that ranks by words alone: the passages and their BM25 index."""


class Evaluate(Inference):
    """Measures every system on dev and test queries.

    Queries of systems of the dual encoder M_de have the vectors that `build_graph` made, thus its precision.
    """

    untrained_backbone: str = MINILM
    """A pretrained encoder, evaluated as an additional row of the table. Empty: no such row."""
    depth: Annotated[int, Field(ge=1000, strict=True)] = 1000
    """Hits of each query that are evaluated; R@1000 needs 1000."""
    measures: Measures = DEFAULT
    """Columns of the table, named as in `ir_measures`: a list, or a text with spaces between the names. The headline
    uses the first measure, and so does the tuning of a fusion's weight. Measures with `(doc)`, MAP(D) and PREC(D) need
    data with documents (`settings.measures`)."""
    test: Literal["randomization", "t"] = "randomization"
    """The paired two-sided test of each system against the baseline, and of the champion: `randomization`, or `t`,
    Student's t-test, which the paper on structured documents uses (Albarede et al., 2022, Table 1)."""
    permutations: PositiveInt = 10000
    """Permutations of the paired randomization test against the baseline."""
    resamples: PositiveInt = 2000
    """Bootstrap resamples of the queries, for the confidence intervals."""
    baseline: str = DUAL_ENCODER
    """The system with which every other system is compared."""
    candidate: str = GNN_ENCODER
    """The system in the headline, and in the won and lost queries. `recommend` chooses what `promote` takes."""
    rerank_depth: Count = 0
    """Hits of the GNN-encoder that the cross-encoder re-ranks, for an additional row of the table: about the best
    possible ranking of these hits. Each dev and test query costs this many scored pairs. 0: no such row."""
    rerank_shards: Tasks = 1
    """Tasks that share this re-ranking, by queries, as `score_candidates.shards`. In `gnn-encoder rerank` one task
    ranks with each re-ranker."""
    run_depth: Count = 100
    """Hits of each query in the TREC run files of the report. 0: no such files."""
    seed: Count = 0
    """Of the randomization test and of the bootstrap."""

    def _problems(self) -> Iterator[str]:
        for name in self.measures:
            if cutoff(name) > self.depth:
                yield f"measures has {name}, which needs depth: {cutoff(name)} (it is {self.depth})"


class Rank(Inference, VectorsOfTexts, LongPassages):
    """Ranks passages for the dev and test queries with one dense system."""

    system: str
    """Name of the system in every table."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""
    backbone: str = ""
    """Rank with this pretrained encoder, with the two lengths below. Empty: with the bundle in the step's inputs."""
    query_length: PositiveInt = 32
    """Most tokens of a query, for `backbone`."""
    passage_length: PositiveInt = 128
    """Most tokens of a passage, for `backbone`."""


class Fuse(StepSettings):
    """Fuses a dense run with BM25's run."""

    measure: Measure = "RR@10"
    """The measure by which the weight is tuned on dev queries."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""


class ChooseEncoder(StepSettings):
    """Chooses, among several encoders as they are, the one that is the best on dev together with BM25."""

    encoders: tuple[str, ...]
    """Short names, in the order of the step's lists."""
    measure: Measure = "RR@10"
    """Of dev queries: the first of `evaluate.measures`."""


class Rerank(Inference, Sharded):
    """Re-ranks the first hits of a run with a pair scorer."""

    system: str
    """Name of the re-ranked run in every table."""
    depth: PositiveInt = 100
    """Hits of each query that are scored."""
    token_vectors: TokenVectorType = "fp16"
    """As in `train_reranker`."""


class Recommend(StepSettings):
    """Recommends a system by its dev figures (`gnn_encoder.evaluation.recommendation` states the rule)."""

    order: Annotated[tuple[str, ...], Field(min_length=1)] = Field(default_factory=served_systems)
    """The systems that may be recommended, the simplest first; those without a run are left out. Each is followed by
    its weighted sum with BM25, which costs one more index and one more search, but no training. `evaluate.baseline`
    must be among them. A system in this list and in no bundle of the run cannot be served. DPR stands before
    the dual encoder: a search costs the same, and a training less. It is left out if it is the dual encoder itself
    (`train_dual_encoder.keep`), or if the index of the bundles is not `flat`, because it is ranked by an exact
    search."""
    margin: Annotated[float, Field(ge=0.0)] = 0.005
    """A simpler system may be this far below the best one, and below `evaluate.baseline` in a stratum: the smallest
    gain of interest, as `promote.smallest_effect`. A larger margin prefers simple systems more: with 0.01, 400 dev
    queries and the differences of `gnn_encoder.evaluation.recommendation`, the simpler one of two equal systems is
    taken in 76 % instead of 64 % of samples, and one that is worse by 0.03 in 8 % instead of 4 %."""
    significance: Fraction = 0.05
    """A system within the margin is excluded if its p-value in the paired test (`evaluate.test`) is at most this."""
    floor_significance: Fraction = 0.1
    """Largest p-value, two-sided and not corrected, of a fall below `evaluate.baseline` in a stratum of the dev queries
    that is an objection. 0.1 is 5 % for a fall alone."""
    by_generated: bool = False
    """Dev queries that a generator wrote (`select_queries`) choose as people's do. Without it they recommend
    `evaluate.baseline`: on `obliqa`, fusions that learnt from sentences of the documents were above the untouched
    hybrid on such dev queries (MRR@10 0.607 and 0.601), and below it on people's test queries (0.644 and 0.698)."""
    measure: Measure = "RR@10"
    """The measure that is compared: `promote.measure`."""
    bm25: bool = True
    """Whether the run's bundles have a BM25 index (`encode_corpus.bm25`): without it nothing can be fused."""


class ChooseBundle(StepSettings):
    """Makes the bundle that a run recommends."""

    previous: str = ""
    """Folder of an earlier run: the system of its bundle is chosen, with the same weights, and its re-ranker is
    copied. Empty: the recommended system."""


class MeasureLatency(StepSettings):
    """Measures the time of single queries."""


class Report(Inference):
    """Writes the page. `Inference` applies to the encoding of won and lost queries for their explanations."""

    changed: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Step → setting → value of the run's settings that differ from the defaults (`presets.changed_settings`)."""


class Promote(StepSettings):
    """Registers the recommended bundle and decides whether it becomes the champion."""

    model_name: Annotated[str, Field(pattern=r"^[\w. -]+$")] = "gnn-encoder"
    """Name of the registered model: letters, digits, spaces, `.`, `_`, `-`."""
    measure: Measure = "RR@10"
    """The test measure that the rule compares, one of evaluate.measures. Tables show RR@10 as MRR@10 and AP as MAP."""
    minimum_gain: float = 0.0
    """Smallest required gain of the recommended system over the plain dual encoder of the same run; 0 lets the dual
    encoder itself pass."""
    smallest_effect: float = 0.005
    """Smallest required gain over the champion on the same queries. With a negative gain and `significance: 1`, a model
    of newer data replaces a champion that is slightly better."""
    significance: Fraction = 0.05
    """Largest p-value of the gain over the champion in the paired test (`evaluate.test`). 1: any."""
    floors: dict[Floor, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=lambda validated: {"R@1000": 0.01, f"{COLD}/{validated['measure']}": 0.005}
    )
    """Measure, or stratum/measure → how far its value may be below that of the champion, and of the plain dual encoder
    of the same run. By default R@1000 0.01, because a re-ranker sees no other passages, and `measure` of cold queries
    0.005: as small as the smallest gain of interest, so that new passages do not pay for the gain of others. Strata:
    warm, cold; old, new (for the champion only: whether its corpus has the query's relevant passages); and the same
    with _labels (`evaluation.strata`)."""
    floor_significance: Fraction = 0.05
    """A fall beyond its floor is an objection if its one-sided p-value in the paired test is at most this, corrected
    (Holm) for the number of floors of strata. Without this condition, chance would decide where queries are few:
    with 100 cold queries, an equally good model falls by more than 0.005 MRR@10 in about 4 of 10 comparisons. 1: any
    fall beyond its floor."""
    smallest_stratum: Count = 200
    """Queries that a stratum needs without a champion; see the next setting."""
    smallest_stratum_share: Fraction = 0.1
    """Without a champion, the floor of a stratum counts if the stratum has at least so many queries, or at least this
    share of all queries. A model must be put into service first: a few queries that lose should not hold back a gain of
    all the others. The reason names each floor that was not counted. 0 and 0: every floor counts."""
    largest_latency_ratio: PositiveFloat = 1.5
    """Largest time of a query as a multiple of the champion's time, both as they are served, with the re-ranker,
    measured in turn on the step's machine. An exact search takes longer if the corpus has grown."""
    largest_latency_ms: PositiveFloat | None = None
    """Largest time of a query in milliseconds, as the bundle is served, on the step's machine. It takes the place of
    the ratio, because a re-ranker always takes many times as long as a search, and also holds for the first model."""
    largest_index_ratio: PositiveFloat = 1.5
    """Largest index size per passage, as a multiple of the champion's."""
    bundle_store: Annotated[str, Field(pattern=r"^(s3://[^/]+/.+)?$")] = ""
    """An `s3://` address below which registered bundles are stored, each in a folder named by the bundle's digest.
    Empty: the bundle stays in the run's folder and is lost with that folder. A cluster whose pipeline root is not
    `s3://` needs this setting, because later runs read `s3://` only."""
