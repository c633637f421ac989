"""Chooses the encoder that is the best on dev queries as it is, together with BM25."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, read_manifest
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import dev_means
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.settings.outcome import ChooseEncoder


@step(dual_encoder="model", passage_vectors="vectors")
def choose_encoder(
    context: Context,
    settings: ChooseEncoder,
    dataset: Path,
    runs: list[Path],
    encoders: list[Path],
    vectors: list[Path],
    dual_encoder: Draft,
    passage_vectors: Draft,
) -> Metrics:
    """Copies what `encode` wrote with the encoder of the best run; of equal runs, and without dev labels, the first.

    The lists have the order of `settings.encoders`; `runs` are fusions with BM25. The figure of the best of several is
    a little too high, so the copy is ranked and measured as any other system.
    """
    names, measure, data = settings.encoders, settings.measure, Dataset(dataset)
    figures = dev_means(data, runs, measure)
    best = figures.index(max(figures)) if figures else 0
    dual_encoder.copy(encoders[best])
    passage_vectors.copy(vectors[best])
    passage_vectors.rows(**read_manifest(vectors[best]).rows)
    shown = ", ".join(f"{name} {figure:.3f}" for name, figure in zip(names, figures, strict=False))
    dev = of_split({"written": data.written_splits}, "dev")
    reason = f"with BM25 on {dev}, {mean_name(measure)}: {shown}" if figures else "the first named, without dev labels"
    return {
        **{f"dev/{name}": figure for name, figure in zip(names, figures, strict=False)},
        "chosen": names[best],
        "headline": f"{names[best]} ({reason})",
    }
