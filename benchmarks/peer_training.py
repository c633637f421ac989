"""The effectiveness of sentence-transformers' recipe on a data set, beside a finished run of this project.

The recipe: MiniLM, MultipleNegativesRankingLoss with one hard negative that the untrained model mined, three epochs,
batch 64, rate 2e-5, 192 tokens, in bf16 if the hardware supports it. The recipe trains on the run's dataset and labels,
and is measured by the run's measures, like the run's systems; p is from the paired randomization test against the
recipe. Training takes hours on a CPU for tens of thousands of labels; `--labels` N uses the first N labels.

    python benchmarks/peer_training.py ROOT/latest [--epochs 3] [--batch 64] [--rate 2e-5] [--length 192] [--labels 0]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import show
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from gnn_encoder.artifacts import Dataset, KnownPositives, Report, Run
from gnn_encoder.evaluation.measures import labelled_queries, mean_name, per_query
from gnn_encoder.evaluation.significance import paired_randomization
from gnn_encoder.inference.encoding import fast_bf16
from gnn_encoder.models.backbone_files import resolve_backbone
from gnn_encoder.retrieval import exact

PEER, UNTRAINED = "sentence-transformers' recipe", "its backbone untrained"
DEPTH, MINED = 1000, 20


def mined(model: SentenceTransformer, data: Dataset, texts: list[str], labels: int) -> dict[str, list[str]]:
    """Anchor, positive and hard negative (the untrained model's best unlabelled passage) of each training label."""
    positive = data.split_qrels("train").positive()
    query, passage = (column[: labels or None] for column in (positive.query, positive.passage))
    asked = data.query_texts(query)
    known = KnownPositives(positive.query, positive.passage)
    _, hits = exact.search(model.encode(texts, show_progress_bar=True), model.encode(asked), MINED)
    negative = hits[np.arange(len(hits)), (~known.contains(query[:, None], hits)).argmax(axis=1)]
    return {"anchor": asked, "positive": [texts[p] for p in passage], "negative": [texts[p] for p in negative]}


def train(model: SentenceTransformer, triples: dict[str, list[str]], options: argparse.Namespace) -> None:
    """Train the model in place by the recipe."""
    import datasets

    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=options.batch,
            learning_rate=options.rate, warmup_steps=0.1, save_strategy="no", report_to="none",
            bf16=fast_bf16(), use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        dataset, loss = datasets.Dataset.from_dict(triples), MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, arguments, dataset, loss=loss).train()


def figures(model: SentenceTransformer, data: Dataset, texts: list[str], names: list[str]) -> np.ndarray:
    """Every measure of every labelled test query [n, measures]."""
    qrels = data.split_qrels("test")
    queries = labelled_queries(qrels)
    scores, hits = exact.search(
        model.encode(texts, show_progress_bar=True), model.encode(data.query_texts(queries)), DEPTH
    )
    return per_query(Run.from_hits(queries, hits, scores), qrels, queries, data.passages.ids(), names)


def main() -> None:
    """Train, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder with `dataset` and `report`")
    for name, default in (("epochs", 3), ("batch", 64), ("length", 192), ("labels", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=2e-5)
    options = parser.parse_args()
    data = Dataset(options.run / "dataset")
    texts = data.passages.take(np.arange(len(data.passages))).full_texts()
    model = SentenceTransformer(resolve_backbone("minilm"))
    model.max_seq_length = options.length
    report = Report.read(options.run / "report")
    names = report.metrics["measures"]
    systems = {UNTRAINED: figures(model, data, texts, names)}
    train(model, mined(model, data, texts, options.labels), options)
    systems[PEER] = figures(model, data, texts, names)
    measured = report.per_query.to_pandas().query("split == 'test'")
    for system, rows in measured.groupby("system", sort=False):
        systems[str(system)] = rows.sort_values("query")[names].to_numpy()
    rows = []
    for system, values in systems.items():
        p = paired_randomization(values - systems[PEER], 10_000, 0) if system != PEER else np.full(len(names), np.nan)
        cells = (
            f"{mean:.3f}" + ("*" if each < 0.05 else "") for mean, each in zip(values.mean(axis=0), p, strict=True)
        )
        rows.append((system, *cells))
    title = f"{options.epochs} epochs, batch {options.batch}, rate {options.rate:g}, {options.length} tokens"
    headings = ("test", *(mean_name(name) for name in names))
    show(title, headings, rows, f"* differs from {PEER}: p < 0.05, uncorrected")


if __name__ == "__main__":
    main()
