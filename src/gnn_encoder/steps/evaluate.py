"""Step 14: every system on the dev and test queries, and one page that says how they did.

Systems are ranked and measured one after the other, so that few rankings are held at a time: BM25's, the
one that is measured, and for two systems what becomes of it with BM25. The untrained backbone's passage vectors are
the only large thing made here; they live in a file that is gone when the step ends.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Graph, Report, Run, read_manifest, read_vectors
from gnn_encoder.artifacts.history import joined
from gnn_encoder.context import Context
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation import answers
from gnn_encoder.evaluation.collected import JUDGED, Collected
from gnn_encoder.evaluation.data_and_training_plots import profile_plot, training_plot
from gnn_encoder.evaluation.examples import examples, most_changed
from gnn_encoder.evaluation.explained_examples import ExampleExplainer
from gnn_encoder.evaluation.latency import systems_latency
from gnn_encoder.evaluation.measures import mean_name, per_query
from gnn_encoder.evaluation.plots import gains_plot, scatter_plot, systems_plot
from gnn_encoder.evaluation.profile import data_profile
from gnn_encoder.evaluation.report import Plot, render_page
from gnn_encoder.evaluation.reranking import reranked
from gnn_encoder.evaluation.results import (
    BASELINE,
    BM25,
    CANDIDATE,
    CONVEX,
    DPR,
    FUSED,
    RECIPROCAL,
    RERANKED,
    UNTRAINED,
    block,
    flat,
    fused_name,
    per_query_table,
    split_digest,
)
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.retrieval import exact, fusion
from gnn_encoder.retrieval.index_file import load_index, search_index
from gnn_encoder.settings import Evaluate
from gnn_encoder.settings.measures import cutoff
from gnn_encoder.steps.step import Metrics, step

EXAMPLES = 5
"""Won queries shown, and lost ones."""
TUNING_QUERIES = 1000
"""Dev queries, at most, that a fusion's weight is tuned on, evenly taken from all."""


@step(report="report")
def evaluate(
    context: Context,
    settings: Evaluate,
    dataset: Path,
    bm25_run: Path,
    dpr_run: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    gnn_encoder: Path,
    encoding: Path,
    bundle: Path,
    cross_encoder: Path,
    report: Draft,
) -> Metrics:
    """Rank, measure, test, and write the report.

    Queries without a positive label are left out (and counted); a query without a hit counts 0.

    Raises:
        UserError: no labelled dev or test query.
    """
    data, names = Dataset(dataset), settings.measures
    collected = Collected(data, names, report, settings.run_depth)
    queries = collected.queries
    if not queries:
        raise UserError(f"{dataset} has no dev or test query with a positive label: nothing can be evaluated")
    shown, asked = collected.shown, collected.asked
    runs = {BM25: bm25_run, DPR: dpr_run}

    fusions: dict[str, dict[str, Any]] = {}
    order: list[str] = []
    total = 4 + bool(settings.untrained_backbone) + bool(settings.rerank_depth) + 2 * len(FUSED)
    progress = context.progress("systems", total, "systems")

    def measured(system: str, run: Run) -> None:
        mean = collected.add(system, run)
        progress.advance(note=f"{system} {mean_name(names[0])} {mean:.3f}")

    for system, run in rankings(context, settings, data, asked, runs, dual_encoder, passage_vectors, bundle, report):
        measured(system, run)
        order.append(system)
        if system == BM25:
            lexical = run
        if system in FUSED:
            for method, (fused, facts) in with_bm25(settings, collected, lexical, run).items():
                fusions[fused_name(system, method)] = {"method": method, "dense": system, **facts}
                measured(fused_name(system, method), fused)
        if system == CANDIDATE and settings.rerank_depth:
            measured(RERANKED, with_cross_encoder(context, settings, data, run, cross_encoder))
            order.append(RERANKED)
    order += [fused_name(system, method) for method in (CONVEX, RECIPROCAL) for system in FUSED]

    profile = data_profile(data, Graph.read(graph))
    statistics = {"permutations": settings.permutations, "resamples": settings.resamples, "seed": settings.seed}
    values = collected.figures(order, names)
    answered = collected.answer_figures(order)
    metrics: dict[str, Any] = {
        **block(values, names, **statistics),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": shown,
        "unlabelled_queries": {split: len(data.query_rows(split)) - len(rows) for split, rows in queries.items()},
        "digests": {split: split_digest(data, split) for split in queries},
        "fusions": fusions,
        "judged": block(collected.figures(order, (JUDGED,)), (JUDGED,), **{**statistics, "permutations": 0}),
        "answers": block(answered, answers.MEASURES, **statistics) if answered else None,
        "latency": systems_latency(data.query_texts(queries[shown]), dual_encoder, passage_vectors, bundle),
        "profile": profile.facts,
        **statistics,
    }
    headline = headline_of(metrics)
    plain, graphed = (values[shown][system][:, 0] for system in (BASELINE, CANDIDATE))
    gains, first = graphed - plain, mean_name(names[0])
    plots = {
        "systems": Plot(systems_plot(metrics, shown), f"Every system on every measure, {shown} queries."),
        "gains": Plot(
            gains_plot(gains, names[0], CANDIDATE, BASELINE),
            f"What {CANDIDATE} gains and loses in {first} against {BASELINE}, {shown} query by query.",
        ),
        "queries": Plot(
            scatter_plot(plain, graphed, names[0], BASELINE, CANDIDATE),
            f"{first} of each {shown} query under both; the area of a circle is the number of queries in it.",
        ),
        "data": Plot(profile_plot(profile), "Lengths of the texts, and how many training queries a passage has."),
    }
    compared, changed = (BASELINE, CANDIDATE), most_changed(gains, EXAMPLES)
    inputs = {
        "dataset": dataset, "bm25_run": bm25_run, "dpr_run": dpr_run, "dual_encoder": dual_encoder,
        "passage_vectors": passage_vectors, "graph": graph, "gnn_encoder": gnn_encoder, "encoding": encoding,
        "bundle": bundle, **({"cross_encoder": cross_encoder} if settings.rerank_depth else {}),
    }  # fmt: skip
    history = joined(inputs.values())
    if drawn := training_plot(history):
        plots["training"] = Plot(drawn, "Training losses, and what each epoch reached on a pool of dev passages.")
    won, lost = (
        examples(
            data, shown, positions,
            {system: values[shown][system][:, 0] for system in compared},
            {system: collected.hits[system] for system in compared},
        )
        for positions in changed
    )  # fmt: skip
    explainer = ExampleExplainer(CANDIDATE, inputs, settings.speed)
    won, lost = (
        explainer.explain(made, collected.hits[CANDIDATE][positions])
        for made, positions in zip((won, lost), changed, strict=True)
    )
    page = render_page(
        metrics,
        headline=headline,
        plots=plots,
        won=won,
        lost=lost,
        manifests={name: read_manifest(path) for name, path in inputs.items()},
        history=history,
        settings=settings.model_dump(),
    )
    Report.write(
        report,
        metrics=metrics,
        per_query=per_query_table(data, queries, collected.figures(order, collected.measured), collected.measured),
        answers=per_query_table(data, collected.answered, answered, answers.MEASURES) if answered else None,
        plots={name: plot.image for name, plot in plots.items()},
        page=page,
    )
    context.run.artifact(report.path, "report")
    return {**flat(metrics), "headline": headline}


def rankings(
    context: Context,
    settings: Evaluate,
    data: Dataset,
    asked: np.ndarray,
    runs: dict[str, Path],
    dual_encoder: Path,
    passage_vectors: Path,
    bundle: Path,
    report: Draft,
) -> Iterator[tuple[str, Run]]:
    """Each system's name and its ranking for the queries `asked` [n], ascending, to the settings' depth."""
    texts, depth = data.query_texts(asked), min(settings.depth, len(data.passages))

    def encoded(encoder: TextEncoder, stage: str) -> np.ndarray:
        progress = context.progress(f"{stage}: encoding", len(texts), "queries")
        return encode_texts(encoder, texts, progress=progress, **settings.speed)

    yield BM25, Run.read(runs[BM25]).of(asked, depth)

    encoders = DualEncoder.load(dual_encoder)
    if settings.untrained_backbone:
        length = encoders.passage_encoder.max_length
        untrained = TextEncoder.from_backbone(settings.untrained_backbone, max_length=length)
        shape = (len(data.passages), untrained.width)
        with tempfile.NamedTemporaryFile(dir=report.path) as file:
            vectors = np.memmap(file.name, dtype=np.float32, mode="w+", shape=shape)
            progress = context.progress(f"{UNTRAINED}: encoding", len(vectors), "passages")
            encode_passages(untrained, data.passages, vectors, progress=progress, **settings.speed)
            untrained.max_length = encoders.query_encoder.max_length
            scores, passages = exact.search(vectors, encoded(untrained, UNTRAINED), depth)
        yield UNTRAINED, Run.from_hits(asked, passages, scores)

    yield DPR, Run.read(runs[DPR]).of(asked, depth)

    queries = encoded(encoders.query_encoder, BASELINE)
    scores, passages = exact.search(read_vectors(passage_vectors), queries, depth)
    yield BASELINE, Run.from_hits(asked, passages, scores)

    parts = Bundle.read(bundle)
    queries = encoded(TextEncoder.load(parts.query_encoder_path), CANDIDATE)
    scores, passages = search_index(load_index(parts.index_path, parts.vectors.shape), queries, depth)
    yield CANDIDATE, Run.from_hits(asked, passages, scores)


def with_bm25(
    settings: Evaluate, collected: Collected, lexical: Run, dense: Run
) -> dict[str, tuple[Run, dict[str, Any]]]:
    """A dense ranking fused with BM25's by either method, and what there is to say of it.

    The weight is tuned on labelled dev queries by the first measure. Where that looks at k hits only, so does
    the tuning.
    """
    weight, tuned = fusion.UNTUNED, {}
    if "dev" in collected.queries:
        dev = collected.queries["dev"]
        some = dev[np.linspace(0, len(dev) - 1, min(len(dev), TUNING_QUERIES)).astype(int)]
        first = settings.measures[0]

        def figure(run: Run) -> float:
            return float(per_query(run, collected.qrels["dev"], some, collected.passage_ids, (first,)).mean())

        depth = cutoff(first) or settings.depth
        weight, figures = fusion.tuned_weight(lexical.of(some), dense.of(some), figure, depth)
        tuned = {"tuned_on": "dev", "tuned_by": first, "tuned_queries": len(some), "figures": figures}
    convex, reciprocal = fusion.fuse(lexical, dense, weight, settings.depth)
    return {
        CONVEX: (convex, {"weight": weight, **(tuned or {"tuned_on": None})}),
        RECIPROCAL: (reciprocal, {"k": fusion.RRF_K}),
    }


def with_cross_encoder(context: Context, settings: Evaluate, data: Dataset, run: Run, cross_encoder: Path) -> Run:
    """A ranking whose first hits are in the cross-encoder's order."""
    pairs = int((run.rank <= settings.rerank_depth).sum())
    progress = context.progress(f"{RERANKED}: scoring", pairs, "pairs")
    model = CrossEncoder.load(cross_encoder)
    return reranked(model, data, run, settings.rerank_depth, progress=progress, **settings.speed)


def headline_of(metrics: dict[str, Any]) -> str:
    """The one sentence of the report."""
    split, measure = metrics["headline_split"], metrics["measures"][0]
    systems, p_value = metrics["results"][split], metrics["p_holm"][split][CANDIDATE][measure]
    return (
        f"{CANDIDATE} {mean_name(measure)} {systems[CANDIDATE][measure]:.3f} "
        f"({BASELINE.lower()} {systems[BASELINE][measure]:.3f}, Holm-corrected p {p_value:.2g})"
    )
