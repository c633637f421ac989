"""Measures the milliseconds per query of the plain dual encoder and of the GNN-encoder."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, Latency
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import shown_split
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.retrieval.latency import systems_latency
from gnn_encoder.settings.outcome import MeasureLatency


@step(latency="latency")
def measure_latency(
    context: Context,
    settings: MeasureLatency,
    dataset: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    bundle: Path,
    latency: Draft,
) -> Metrics:
    """Measures the time of single queries of the headline split, the two systems in turn."""
    data = Dataset(dataset)
    questions = data.query_texts(labelled_queries(data.judged(shown_split(data))))
    facts = systems_latency(questions, dual_encoder, passage_vectors, bundle)
    Latency.write(latency, facts)
    milliseconds = {system: times["encode_ms"] + times["search_ms"] for system, times in facts["systems"].items()}
    return {"headline": ", ".join(f"{system} {ms:.1f} ms" for system, ms in milliseconds.items())}
