"""The settings of the steps that use trained models: they encode the corpus, rank, evaluate, report and promote."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gnn_encoder.settings.bm25 import Lexical
from gnn_encoder.settings.measures import DEFAULT, Measure, Measures, cutoff
from gnn_encoder.settings.shared import MINILM, Inference
from gnn_encoder.settings.values import Count, Fraction, PositiveFloat, PositiveInt, StepSettings

UNTRAINED, DUAL_ENCODER, GNN_ENCODER, CROSS_ENCODER = "Untrained", "Dual encoder", "GNN-encoder", "Cross-encoder"
"""Names of the systems that the training pipeline ranks by steps of their own."""


class IndexKind(StepSettings):
    """The FAISS index that a bundle serves (`gnn_encoder.retrieval.index_file`)."""

    index: Literal["flat", "flat_fp16", "sq8", "ivf", "hnsw"] = "flat"
    """`flat` is exact; the others trade recall, measured at build, for size or speed."""
    ivf_lists: Count = 0
    """0: four times the square root of the number of passages."""
    ivf_probes: PositiveInt = 32
    """Lists that a search reads."""
    hnsw_links: Annotated[int, Field(ge=2, le=1024, strict=True)] = 32
    """Neighbours of a passage in the index's graph."""
    hnsw_breadth: PositiveInt = 128
    """Candidates that a search keeps (at least as many as the hits asked for)."""


class EncodeCorpus(Inference, Lexical, IndexKind):
    """h'_p of all passages by the full graph, the index over them, and a BM25 index.

    BM25 scores as in `bm25_retrieve`, unless its settings are set here, too.
    """

    previous: str = ""
    """As in `build_graph`: folder of an earlier run, here with its `encoding` and `bundle`."""
    chunk: PositiveInt = 2048
    """Passages that a core propagates at a time. The result does not depend on it."""
    bm25: bool = True
    """Put a BM25 index into the bundle, so that a search can fuse the two rankings."""


class Evaluate(Inference):
    """Dev and test figures of every system."""

    untrained_backbone: str = MINILM
    """A pretrained encoder as another row of the table. Empty: no such row."""
    depth: Annotated[int, Field(ge=1000, strict=True)] = 1000
    """Hits of each system that are evaluated; R@1000 needs 1000."""
    measures: Measures = DEFAULT
    """Columns of the table, in `ir_measures`' names: a list, or a text with spaces between. The first one is the
    headline's measure, and the weight of a fusion is tuned by it."""
    permutations: PositiveInt = 10000
    """Of the paired randomization test against M_de."""
    resamples: PositiveInt = 2000
    """Of the queries, for the bootstrap's confidence intervals."""
    baseline: str = "Dual encoder"
    """The system that every other is compared with."""
    candidate: str = "GNN-encoder"
    """The system that the report is about: its headline, its won and lost queries, and what `promote` compares."""
    rerank_depth: Count = 0
    """Hits of the GNN-encoder that the cross-encoder re-ranks, as another row of the table: about the best ranking of
    these hits. So many pairs are scored for each dev and test query. 0: no such row."""
    run_depth: Count = 100
    """Hits of each query in the report's TREC runs. 0: no such files."""
    seed: Count = 0

    def _problems(self) -> Iterator[str]:
        for name in self.measures:
            if cutoff(name) > self.depth:
                yield f"measures has {name}, which needs depth: {cutoff(name)} (it is {self.depth})"


class Rank(Inference):
    """Ranks the dev and test queries by one dense system."""

    system: str
    """Its name in every table."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""
    backbone: str = ""
    """Rank by this pretrained encoder as it is, with the two lengths below. Empty: by the step's input models."""
    query_length: PositiveInt = 32
    passage_length: PositiveInt = 128


class Fuse(StepSettings):
    """Fuses a dense run with BM25's."""

    measure: Measure = "RR@10"
    """The weight is tuned by this measure on dev queries."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""


class Rerank(Inference):
    """Re-ranks the first hits of a run by a scorer of pairs."""

    system: str
    """Name of the re-ranked run in every table."""
    depth: Count = 0
    """Hits of each query that are scored. 0: the run is empty, and no table has it."""


class MeasureLatency(StepSettings):
    """Times single questions."""


class Report(Inference):
    """Writes the page. Won and lost queries are encoded at this speed for their explanation."""


class Promote(StepSettings):
    """Registers the bundle and decides whether it becomes the champion."""

    model_name: Annotated[str, Field(pattern=r"^[\w. -]+$")] = "gnn-encoder"
    """Of the registered model: letters, digits, spaces, `.`, `_`, `-`."""
    measure: Measure = "RR@10"
    """Test measure that the rule compares, one of evaluate.measures. RR@10 and AP are the table's MRR@10 and MAP."""
    minimum_gain: float = 0.0
    """Least gain of the GNN-encoder over the plain dual encoder of its own run."""
    smallest_effect: float = 0.005
    """Least gain over the champion on the same queries. With a negative one and `significance: 1`, a model of newer
    data replaces one that is hardly better."""
    significance: Fraction = 0.05
    """Largest p of that difference by the paired randomization test. 1: any."""
    floors: dict[Measure, Annotated[float, Field(ge=0.0)]] = Field(default={"R@1000": 0.01})
    """Measure → how far it may lie below the champion's."""
    largest_latency_ratio: PositiveFloat = 1.5
    """Largest time of a question as a multiple of the champion's, both measured in turn, where the step runs. An exact
    search takes longer in a corpus that grew."""
    largest_index_ratio: PositiveFloat = 1.5
    """Largest size of the index per passage, as a multiple of the champion's."""
    bundle_store: Annotated[str, Field(pattern=r"^(s3://[^/]+/.+)?$")] = ""
    """An `s3://` address below which registered bundles are kept, each in a folder named by its digest. Empty: a
    version's bundle stays in the run's folder, and is lost with it. A cluster whose pipeline root is not `s3://` needs
    it: later runs read no other store."""
