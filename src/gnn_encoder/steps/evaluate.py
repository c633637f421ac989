"""Step 14: every system on the dev and test queries, and one page that says how they did.

Systems are ranked and measured one after the other, so that one ranking is held at a time. The
untrained backbone's passage vectors are the only large thing made here; they live in a file that is
gone when the step ends.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder import index
from gnn_encoder.artifacts import Bundle, Dataset, Draft, Report, Run, read_manifest, read_vectors
from gnn_encoder.context import Context
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.examples import SHOWN, examples, most_changed
from gnn_encoder.evaluation.explained_examples import ExampleExplainer
from gnn_encoder.evaluation.measures import MEAN_NAMES, NAMES, labelled_queries, per_query
from gnn_encoder.evaluation.plots import gains_plot, systems_plot
from gnn_encoder.evaluation.report import Plot, data_profile, render_page
from gnn_encoder.evaluation.results import (
    BASELINE,
    BM25,
    CANDIDATE,
    DPR,
    UNTRAINED,
    flat,
    means,
    p_values,
    per_query_table,
    split_digest,
)
from gnn_encoder.index_file import load_index, search_index
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.settings import Evaluate
from gnn_encoder.steps.step import Metrics, step

SPLITS = ("dev", "test")
EXAMPLES = 5
"""Won queries shown, and lost ones."""


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
    report: Draft,
) -> Metrics:
    """Rank, measure, test, and write the report.

    Queries without a positive label are left out (and counted); a query without a hit counts 0.

    Raises:
        UserError: no labelled dev or test query.
    """
    data = Dataset(dataset)
    qrels = {split: data.split_qrels(split) for split in SPLITS}
    queries = {split: found for split in SPLITS if len(found := labelled_queries(qrels[split]))}
    if not queries:
        raise UserError(f"{dataset} has no dev or test query with a positive label: nothing can be evaluated")
    shown = "test" if "test" in queries else "dev"
    asked = np.sort(np.concatenate(list(queries.values())))
    runs = {BM25: bm25_run, DPR: dpr_run}
    passage_ids = data.passages.ids()

    values: dict[str, dict[str, np.ndarray]] = {split: {} for split in queries}
    hits: dict[str, np.ndarray] = {}
    progress = context.progress("systems", 4 + bool(settings.untrained_backbone), "systems")
    for system, run in rankings(context, settings, data, asked, runs, dual_encoder, passage_vectors, bundle, report):
        for split, rows in queries.items():
            values[split][system] = per_query(run, qrels[split], rows, passage_ids)
        hits[system] = run.hits(queries[shown], SHOWN)
        progress.advance(note=f"{system} {MEAN_NAMES[NAMES[0]]} {values[shown][system][:, 0].mean():.3f}")

    metrics: dict[str, Any] = {
        "measures": list(NAMES),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": shown,
        "results": {split: means(values[split]) for split in queries},
        "p_values": {split: p_values(values[split], settings.permutations, settings.seed) for split in queries},
        "queries": {split: len(rows) for split, rows in queries.items()},
        "unlabelled_queries": {split: len(data.query_rows(split)) - len(rows) for split, rows in queries.items()},
        "digests": {split: split_digest(data, split) for split in queries},
        "permutations": settings.permutations,
        "seed": settings.seed,
    }
    headline = headline_of(metrics)
    gains = values[shown][CANDIDATE][:, 0] - values[shown][BASELINE][:, 0]
    plots = {
        "systems": Plot(systems_plot(metrics, shown), f"Every system on every measure, {shown} queries."),
        "gains": Plot(
            gains_plot(gains, NAMES[0], CANDIDATE, BASELINE),
            f"What {CANDIDATE} gains and loses in {NAMES[0]} against {BASELINE}, {shown} query by query.",
        ),
    }
    compared, changed = (BASELINE, CANDIDATE), most_changed(gains, EXAMPLES)
    inputs = {
        "dataset": dataset, "bm25_run": bm25_run, "dpr_run": dpr_run, "dual_encoder": dual_encoder,
        "passage_vectors": passage_vectors, "graph": graph, "gnn_encoder": gnn_encoder, "encoding": encoding,
        "bundle": bundle,
    }  # fmt: skip
    won, lost = (
        examples(
            data, shown, positions,
            {system: values[shown][system][:, 0] for system in compared}, {system: hits[system] for system in compared},
        )
        for positions in changed
    )  # fmt: skip
    explainer = ExampleExplainer(CANDIDATE, inputs, settings.speed)
    won, lost = (
        explainer.explain(made, hits[CANDIDATE][positions])
        for made, positions in zip((won, lost), changed, strict=True)
    )
    page = render_page(
        metrics,
        headline=headline,
        passages=len(data.passages),
        profile=data_profile(data),
        plots=list(plots.values()),
        won=won,
        lost=lost,
        manifests={name: read_manifest(path) for name, path in inputs.items()},
        settings=settings.model_dump(),
    )
    Report.write(
        report,
        metrics=metrics,
        per_query=per_query_table(data, queries, values),
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
            scores, passages = index.search(vectors, encoded(untrained, UNTRAINED), depth)
        yield UNTRAINED, Run.from_hits(asked, passages, scores)

    yield DPR, Run.read(runs[DPR]).of(asked, depth)

    queries = encoded(encoders.query_encoder, BASELINE)
    scores, passages = index.search(read_vectors(passage_vectors), queries, depth)
    yield BASELINE, Run.from_hits(asked, passages, scores)

    parts = Bundle.read(bundle)
    queries = encoded(TextEncoder.load(parts.query_encoder_path), CANDIDATE)
    scores, passages = search_index(load_index(parts.index_path), queries, depth)
    yield CANDIDATE, Run.from_hits(asked, passages, scores)


def headline_of(metrics: dict[str, Any]) -> str:
    """The one sentence of the report."""
    split, measure = metrics["headline_split"], metrics["measures"][0]
    systems, p_value = metrics["results"][split], metrics["p_values"][split][CANDIDATE][measure]
    return (
        f"{CANDIDATE} {MEAN_NAMES[measure]} {systems[CANDIDATE][measure]:.3f} "
        f"({BASELINE.lower()} {systems[BASELINE][measure]:.3f}, p {p_value:.2g})"
    )
