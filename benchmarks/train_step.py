"""Forward and backward pass of Masked Graph Training against a plain dual encoder, per token that an encoder reads.

Both use the same batches of python-docs queries with MiniLM. The plain step encodes queries and passages. The masked
step also encodes the neighbour queries and runs the GNN over random edges with random features. The sides take turns;
the table shows medians.

    python benchmarks/train_step.py [--batch 32] [--steps 6]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import documentation, show
from torch import Tensor

from gnn_encoder.artifacts import Dataset, Graph, TrainingSet, reverse_csr
from gnn_encoder.inference.encoding import autocast
from gnn_encoder.models.dual_encoder import DualEncoder, device
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.batches import Batch
from gnn_encoder.training.losses import contrastive_loss
from gnn_encoder.training.masked_graph import MaskedGraphTraining
from gnn_encoder.training.prefetch import batches_of
from gnn_encoder.training.texts import EncodedTexts

K, LENGTH = 10, 96


def job(folder: str, batch: int, cached: bool = False) -> MaskedGraphTraining:
    """Masked training on Python's documentation with a random graph."""
    path = Path(folder) / "dataset"
    data, generator = Dataset(path if path.is_dir() else documentation(Path(folder), 1000)), np.random.default_rng(0)
    queries, labels, m = data.query_rows("train"), data.split_qrels("train"), len(data.passages)
    edges = generator.integers(0, m, (len(queries), K), dtype=np.int32)
    features = generator.standard_normal((len(queries), K, 384), dtype=np.float32).astype(np.float16)
    graph = Graph(queries, edges, edges < 0, features, *reverse_csr(edges, m))
    examples = TrainingSet(
        data.query_texts(labels.query),
        labels.query,
        labels.passage,
        generator.integers(0, m, (len(labels.query), 4)).astype(np.int32),
        np.zeros(len(labels.query)),
    )
    torch.manual_seed(0)
    encoders = DualEncoder.from_backbone(
        "minilm", pooling="auto", normalize="auto", query_length=32, passage_length=LENGTH, share_encoders=False
    )
    model = GnnEncoder(encoders, GNN(GnnConfig(width=384, edge_width=384)))
    model.to(device()).train()
    vectors = generator.standard_normal((m, 384), dtype=np.float32)
    settings = TrainGnn(batch_size=batch, max_queries_per_passage=4, mask_fraction=0.2, gradient_cache=cached)
    return MaskedGraphTraining(model, data, examples, graph, vectors, settings)


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        masked, cached = job(folder, options.batch), job(folder, options.batch, cached=True)
    queries, answers = masked.queries, masked.passages
    assert isinstance(queries, EncodedTexts) and isinstance(answers, EncodedTexts)

    def plain(batch: Batch) -> Tensor:
        return contrastive_loss(
            queries.live(masked.examples.query[batch.examples]), answers.live(batch.passages),
            torch.from_numpy(batch.positive).to(device()), torch.from_numpy(batch.excluded).to(device()), 20.0,
        )  # fmt: skip

    sides: dict[str, tuple[MaskedGraphTraining, Callable[[Batch], Tensor]]] = {
        "dual encoder": (masked, plain),
        "masked graph": (masked, masked.loss),
        "masked graph, gradient cache": (cached, cached.loss),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    tokens: dict[str, list[int]] = {name: [] for name in sides}
    for number, batch in zip(range(options.steps + 1), batches_of(masked.plan(), 0), strict=False):
        hood = masked.neighbourhood(batch)
        asked = np.unique(masked.node[batch.examples])
        passages = int(answers.tokens.lengths[batch.passages].sum())
        for name, (training, loss) in sides.items():
            began = time.perf_counter()
            with autocast("auto"):
                value = loss(batch)
            value.backward()
            training.model.zero_grad(set_to_none=True)
            if number:  # the first warms up
                seconds[name].append(time.perf_counter() - began)
                encoded = masked.node[batch.examples] if name == "dual encoder" else np.union1d(asked, hood.nodes)
                tokens[name].append(passages + int(queries.tokens.lengths[masked.graph.queries[encoded]].sum()))
    each = {name: statistics.median(np.divide(seconds[name], tokens[name])) * 1e6 for name in sides}
    rows = [
        (name, f"{statistics.median(seconds[name]):.2f}", f"{statistics.median(tokens[name]):,.0f}",
         f"{each[name]:.0f}", f"{each[name] / each['dual encoder']:.2f}")
        for name in sides
    ]  # fmt: skip
    title = f"MiniLM, at most {options.batch} queries a batch, k = {K}, at most 4 neighbour queries a passage"
    measured = len(seconds["dual encoder"])
    headings = ("step", f"seconds (median of {measured})", "tokens", "µs a token (median)", "ratio")
    show(title, headings, rows)


if __name__ == "__main__":
    main()
