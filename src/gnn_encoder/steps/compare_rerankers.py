"""Reports a study of re-rankers: gains over each other, and the tables and figures that belong to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Draft, Evaluation, GeneratedQueries, Report, Run
from gnn_encoder.artifacts.history import History, joined, read_history
from gnn_encoder.engines.step import Metrics, step
from gnn_encoder.evaluation.measures import labelled_queries, mean_name
from gnn_encoder.evaluation.similarity import beside_paper
from gnn_encoder.inference.diffusion import COSINES, Diffusion, diffusion
from gnn_encoder.inference.pair_outputs import FrozenEncoder
from gnn_encoder.inference.scoring import PairTokens
from gnn_encoder.report.charts import diffusion_charts, line_chart
from gnn_encoder.report.page import Chart, render_study
from gnn_encoder.report.study import ROUGE, efficiency, first_words, gains, learned, thresholds, words_table
from gnn_encoder.retrieval.scorers import CrossEncoderScorer, load_scorer
from gnn_encoder.settings.reranking import CompareRerankers
from gnn_encoder.settings.reranking_systems import ALL_SYSTEMS, RERANKING_STUDIES, SYSTEMS, THRESHOLDS
from gnn_encoder.tracking.context import Context


@step(study="report")
def compare_rerankers(
    context: Context,
    settings: CompareRerankers,
    dataset: Path,
    first_run: Path,
    evaluation: Path,
    rerankers: list[Path],
    study: Draft,
    generated_queries: Path | None = None,
) -> Metrics:
    """Compares the re-rankers' figures, trainings and outputs."""
    data, evaluated, definition = Dataset(dataset), Evaluation.read(evaluation), RERANKING_STUDIES[settings.study]
    trained = {list(read_history(path))[-1]: path for path in rerankers}
    history, metrics = joined(trained.values()), {**evaluated.metrics, "study": settings.study}
    compared = {one: other for one, other in definition.against.items() if {one, other} <= {*settings.systems}}
    against = {ALL_SYSTEMS[one].title: ALL_SYSTEMS[other].title for one, other in compared.items()}
    metrics |= gains(evaluated, metrics, against)
    metrics |= {
        "efficiency": efficiency(history) if definition.encoders else {},
        "cosines": list(COSINES),
        "diffusion": {},
    }
    augmented = [SYSTEMS["ss_bert_h"].title, *(system.title for system in THRESHOLDS.values())]
    metrics |= {"words": {}, "thresholds": thresholds(history, augmented)}
    metrics["learned"] = learned(history)
    drawn: dict[str, Chart] = {}
    if definition.encoders:
        folders = {
            label: trained[f"train_reranker: {SYSTEMS[name].title}"] for label, name in definition.encoders.items()
        }
        diffusions = measured(context, settings, data, Run.read(first_run), metrics["headline_split"], folders)
        metrics["diffusion"] = {label: result.means.tolist() for label, result in diffusions.items()}
        pairs = f"{settings.diffusion_pairs:,} pairs of a {metrics['headline_split']} query and one of its first hits"
        caption = f"Cosines of the encoder's outputs (BERT-DMN Fig. 3), of at most {pairs}"
        drawn = {f"diffusion {kind}": Chart(spec, caption) for kind, spec in diffusion_charts(diffusions).items()}
    if generated_queries:
        metrics |= queries_metrics(data, GeneratedQueries.read(generated_queries), history)
    if metrics["thresholds"]:
        measure, points = metrics["measures"][0], metrics["thresholds"]
        means = metrics["results"][metrics["headline_split"]]
        curves = {
            mean_name(measure): [(of["threshold"], means[system][measure]) for system, of in points.items()],
            "step of the best dev figure": [(of["threshold"], of["step"]) for of in points.values()],
        }
        drawn |= {
            f"threshold {title}": Chart(line_chart(curve, "t_A", title), f"{title} by t_A (SS-BERT's Fig. 4 and 5)")
            for title, curve in curves.items()
        }
    headline = evaluated.manifest.metrics["headline"]
    page = render_study(metrics, headline=headline, drawn=drawn)
    images = {name: chart.spec for name, chart in drawn.items()}
    Report.write(study, metrics=metrics, per_query=evaluated.per_query, plots=images, page=page)
    context.log.artifact(study.path, "study")
    return {**flat(metrics), "headline": headline}


def measured(
    context: Context, settings: CompareRerankers, data: Dataset, run: Run, split: str, folders: Mapping[str, Path]
) -> dict[str, Diffusion]:
    """Returns the diffusion of information in each encoder, over pairs drawn from a split's first hits."""
    hits = run.of(labelled_queries(data.judged(split)), settings.depth)
    rows = np.random.default_rng(settings.seed).permutation(len(hits.query))[: settings.diffusion_pairs]
    progress = context.progress("diffusion", len(folders) * len(rows), "pairs")
    diffusions = {}
    for label, folder in folders.items():
        scorer = load_scorer(folder)
        assert isinstance(scorer, CrossEncoderScorer)  # a study names no other kind
        pairs, first, second = scorer.pairs(data, hits.query[rows], hits.passage[rows])
        assert isinstance(pairs, PairTokens)
        encoder = FrozenEncoder(scorer.model)
        diffusions[label] = diffusion(encoder, pairs, first, second, progress=progress, **settings.speed)
    return diffusions


def queries_metrics(data: Dataset, generated: GeneratedQueries, history: History) -> dict[str, Any]:
    """Returns the tables of generated queries beside SS-BERT's: `words`, `rouge` and `similarity`."""
    real = data.queries.column("text").take(pa.array(data.query_rows("train")))
    scores = history["train_query_generator"].metrics
    return {
        "words": words_table(first_words(real), first_words(pa.array(generated.text, pa.string()))),
        "rouge": [(name, scores[key], paper) for key, (name, paper) in ROUGE.items() if key in scores],
        "similarity": beside_paper(history["generate_queries"].metrics),
    }


def flat(metrics: dict[str, Any]) -> dict[str, float]:
    """Returns gains as `test/BERT-DMN against BERT/AP`, and the figures of the other tables likewise."""
    tables = {name: metrics[name] for name in ("efficiency", "thresholds", "learned")}
    tables["diffusion"] = {label: dict(zip(COSINES, of, strict=True)) for label, of in metrics["diffusion"].items()}
    return {
        f"{table}/{row}/{column}": value
        for table, rows in (metrics["gains"] | tables).items()
        for row, columns in rows.items()
        for column, value in columns.items()
    }
