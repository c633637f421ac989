"""Searches a bundle and explains each hit: the graph's effect on its vector, score and rank, or its re-ranker's score.

For the graph's effect, the artifacts that the bundle was made from must be in its parent folder, as in ROOT/latest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from gnn_encoder.artifacts import Asked, Bundle, passage_text, read_manifest
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.artifacts.finished_run import place_of, run_folder
from gnn_encoder.errors import UserError, printable
from gnn_encoder.explanation.fusion import explain_by_fusion
from gnn_encoder.explanation.labels import explain_by_labels
from gnn_encoder.explanation.passages import NEEDED, ExplainedPassage, Sources
from gnn_encoder.explanation.words import explain_by_words
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.fusion import min_max
from gnn_encoder.retrieval.reranking import reranked_depth, scores_by_bundle, weighed
from gnn_encoder.retrieval.scorers import Contribution, DocumentScorer, Scorer
from gnn_encoder.retrieval.search import ASKED, NO_VECTORS, Hit, Searcher, served_run
from gnn_encoder.settings.systems import GNN_ENCODER

CHUNK = 16_384
"""Number of passages ranked at a time."""
INFLOWS = 3
"""Number of passages shown for each training query."""
LONGEST = 160
"""Number of characters shown of such a passage."""


@dataclass(frozen=True)
class ExplainedHit:
    """A hit, its explanation, and its exact rank among all passages, from 1, with and without the graph."""

    hit: Hit
    why: ExplainedPassage
    rank: int
    plain_rank: int


def explain_search(
    searcher: Searcher,
    question: str,
    k: int = 5,
    neighbors: int = 5,
    beside: Path | None = None,
    only: Selection | None = None,
) -> list[ExplainedHit]:
    """Returns the best `k` passages for a query, best first, each with `neighbors` training queries of largest weight.

    Only the neighbourhood of the hits is propagated. For the ranks, h'_p and h_p of all passages are read once.

    Args:
        beside: the folder of the run, with the artifacts that the bundle was made from; by default the bundle's parent.
        only: passages that may be hits, and are counted in ranks; None: all.

    Raises:
        UserError: as `Searcher.find`, or these artifacts are not in that folder.
    """
    sources = sources_of(searcher.bundle, beside)
    vector, scores, rows = searcher.find(question, k, only)
    (whys,) = sources.explain(vector[None], rows[None], neighbors=neighbors, inflows=INFLOWS, only=only)
    with_graph = ranks(searcher.bundle.vectors, vector, rows, only=only)
    without = ranks(sources.encoding.passages, vector, rows, sources.gnn.scaled, only)
    hits = zip(searcher.hits(scores, rows), whys, with_graph, without, strict=True)
    return [ExplainedHit(*fields) for fields in hits]


def explain_reranked(
    searcher: Searcher,
    scorer: Scorer,
    question: str,
    k: int = 5,
    depth: int | None = None,
    only: Selection | None = None,
) -> list[tuple[Hit, list[Contribution]]]:
    """Returns the best `k` of a query's hits in the order of a re-ranked search, each with the parts of its score.

    In a sum with the first stage, the re-ranker's scores are scaled to 0 to 1 and weighted, and so are their parts. One
    more part has what the scaling adds, so that all parts sum to the score.

    depth: hits that are re-ranked; None: as a search does. only: passages that may be hits; None: all.

    Raises:
        UserError: as `Searcher.run`.
    """
    bundle, reranking = searcher.bundle, searcher.bundle.serving.reranking
    searcher.check(question, k)
    k = searcher.at_most(k)
    depth = searcher.at_most(max(k, depth or reranked_depth(bundle)))  # a later hit has no score of the re-ranker
    reads = bundle.serving.weight != 0 and searcher.index.reads_vectors
    vectors = searcher.encode(question) if reads else NO_VECTORS
    first = served_run(bundle, searcher.index, ASKED, [question], vectors, depth, only=only)
    if not len(first.passage):
        return []
    weight, data = reranking.weight if reranking else 1.0, Asked([question], bundle.passages)
    scores = scores_by_bundle(bundle, scorer, ASKED, [question], first)
    run, span = weighed(first, depth, scores, weight), float(np.ptp(scores))
    shares = dict(zip(first.passage.tolist(), ((1 - weight) * min_max(first)).tolist(), strict=True))
    explained = []
    for hit, row in zip(searcher.hits(run.score[:k], run.passage[:k]), run.passage[:k].tolist(), strict=True):
        if isinstance(scorer, DocumentScorer):  # it names other passages
            parts = scorer.explain(data, question, row, only, reranking.precision if reranking else "auto")
        else:
            parts = scorer.explain(data, question, row)
        if reranking and weight < 1:
            parts = [Contribution(source, amount * weight / span if span else 0.0) for source, amount in parts]
            scaling = "scaling: the re-ranker's lowest score counts as 0" if parts else "the re-ranker"
            parts.append(Contribution(scaling, hit.score - shares[row] - sum(part.amount for part in parts)))
            share = f"{reranking.first_stage}, in the sum with {weight:.2f} of the re-ranker, both from 0 to 1"
            parts = [Contribution(share, shares[row]), *parts]
        explained.append((hit, parts))
    return explained


def explain_parts(
    searcher: Searcher, question: str, k: int = 5, queries: int = 5, only: Selection | None = None
) -> list[tuple[Hit, list[Contribution]]]:
    """Explains the hits of a bundle without a graph: by words, by the parts of its fusion, or by labelled queries."""
    if not searcher.bundle.has_vectors:
        return explain_by_words(searcher, question, k, only)
    if searcher.bundle.fusion_path:
        with searcher.reading:  # as `Retriever.search` does, so that one thread at a time does heavy work
            return explain_by_fusion(searcher, question, k, only)
    return explain_by_labels(searcher, question, k, queries, only)


def sources_of(bundle: Bundle, beside: Path | None = None) -> Sources:
    """Opens the artifacts that a bundle was made from; raises UserError if one is missing or another run's."""
    if bundle.system != GNN_ENCODER:
        raise UserError(
            f"{bundle.path} has the vectors of the system {bundle.system}, without a graph: give --bundle "
            f"ROOT/latest/{place_of(GNN_ENCODER)}"
        )
    beside, inputs = beside or run_folder(bundle.path), bundle.manifest.inputs
    folders = {name: beside / name for name in NEEDED}
    if missing := [name for name, path in folders.items() if not path.exists()]:
        raise UserError(
            f"{bundle.path}: no {', '.join(missing)} beside it, and without nothing can be explained or labelled; "
            "give --bundle ROOT/latest/bundle of a finished run"
        )
    for name, path in folders.items():
        if read_manifest(path).digest != inputs.get(name):
            raise UserError(f"{path} is not what {bundle.path} was made from; give --bundle ROOT/latest/bundle")
    return Sources.read(folders, bundle.changes.nodes if bundle.changes else None)


def ranks(
    vectors: Rows,
    question: np.ndarray,
    rows: np.ndarray,
    scaled: Callable[[Tensor], Tensor] | None = None,
    only: Selection | None = None,
) -> list[int]:
    """Returns the ranks, from 1, of passages `rows` [t] by inner product with a query, ties by ascending row.

    Args:
        vectors: [m, d], possibly memory-mapped, read in chunks. question: query vector [d].
        scaled: function applied to the passage vectors first. only: passages that count; None: all.
    """
    scores, query = np.empty(len(vectors), np.float32), torch.from_numpy(question)
    for start in range(0, len(vectors), CHUNK):
        block = torch.from_numpy(np.array(vectors[start : start + CHUNK], np.float32))
        scores[start : start + CHUNK] = ((scaled(block) if scaled else block) @ query).numpy()
    if only:
        scores[~only.mask] = -np.inf
    return [1 + int((scores > scores[row]).sum()) + int((scores[:row] == scores[row]).sum()) for row in rows.tolist()]


def show_hit(screen: Console, explained: ExplainedHit) -> None:
    """Prints the passage, its score and rank with and without the graph, and the table of its influences."""
    hit, why = explained.hit, explained.why
    screen.print(hit.heading(), markup=False, style="bold")
    lines = [
        f"with the graph {why.score:.4f}, rank {explained.rank:,}; "
        f"without it {why.plain_score:.4f}, rank {explained.plain_rank:,}",
        f"gate open by {why.opening:.2f} on average, above 0.5 in {why.open_share:.0%} of its dimensions",
    ]
    if not why.influences:
        lines.append("no training query flowed into it, only the passage itself")
    for line in (*hit.body(), *(f"     {line}" for line in lines)):
        screen.print(line, markup=False, highlight=False)
    if why.influences:
        screen.print(influences_table(why))
    screen.print()


def show_parts(screen: Console, hit: Hit, parts: list[Contribution]) -> None:
    """Prints the passage, and the table of the parts of its re-ranker's score."""
    screen.print(hit.heading(), markup=False, style="bold")
    for line in hit.body():
        screen.print(line, markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("       part", justify="right", no_wrap=True)
    table.add_column("of the score")
    for part in parts:
        table.add_row(f"{part.amount:+.4f}", Text(printable(part.source)))
    if parts:
        screen.print(table)
    else:
        screen.print("     this re-ranker reads the pair as a whole: its score has no parts", style="dim")
    screen.print()


def influences_table(why: ExplainedPassage) -> Table:
    """Returns a table of the training queries in a passage's vector, each with the passages in the query's vector."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("     weight", justify="right", no_wrap=True)
    table.add_column("without it", justify="right", no_wrap=True)
    table.add_column("training query")
    for influence in why.influences:
        mark = " (labelled)" if influence.labelled else ""
        query = Text(printable(f"{influence.query} [{influence.query_id}]{mark}"))
        table.add_row(f"{influence.weight:.0%}", f"{influence.score_change:+.4f}", query)
        if influence.inflows:
            table.add_row("", "", Text(f"  {influence.own:>4.0%} the query itself", style="dim"))
        for inflow in influence.inflows:
            text = printable(passage_text(inflow.title, inflow.text))
            text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            source = f"  {inflow.weight:>4.0%} [{printable(inflow.passage_id)}]"
            table.add_row("", "", Text(f"{source} {text}", style="dim"))
    if why.others:
        noun = "query" if why.others == 1 else "queries"
        table.add_row(f"{why.others_weight:.0%}", "", f"{why.others:,} more {noun}")
    table.add_row(f"{why.own:.0%}", "", "the passage itself")
    return table
