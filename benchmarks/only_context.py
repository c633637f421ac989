"""LiM, MiM and Mix-iM where only a passage's context can answer: the section's title, the order, or a citation.

    python benchmarks/only_context.py [--context section order citation] [--systems colbert lim] [--epochs 40]
        [--settings residual=true context_unit_length=true]

A question names a topic and an aspect ("t7 a3"). The passage of an aspect has the same words for every topic, and the
topic is written elsewhere: in the title of the passage's section, in the passage before it, or in a passage of another
document, which it cites. Each question has 20 candidates of its aspect in random order, so content alone ranks by
chance (MRR 0.180), and whoever reads the context can reach 1. Words are invented and the encoder is one random layer of
BERT, so nothing is known beforehand. Test questions are other pairs of a topic and an aspect than training's.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import show

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.settings.documents import BuildDocumentGraph, EncodeContext
from gnn_encoder.settings.outcome import Rerank
from gnn_encoder.settings.presets import read_yaml
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import SYSTEMS
from gnn_encoder.steps.build_document_graph import build_document_graph
from gnn_encoder.steps.encode_context import encode_context
from gnn_encoder.steps.rerank import rerank
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS

TOPICS, ASPECTS, CANDIDATES, WIDTH = 40, 10, 20, 32
DEV, TEST = 60, 100
"""Questions; the other 240 pairs of a topic and an aspect are for training."""


def write_dataset(path: Path, context: str, seed: int = 0) -> np.ndarray:
    """Writes the data set; returns the candidates int64 [questions, 20] of each question."""
    generator, count = np.random.default_rng(seed), TOPICS * ASPECTS
    topic, aspect = np.divmod(np.arange(count), ASPECTS)
    texts, titles = [f"a{a}" for a in aspect], [f"t{t}" for t in range(TOPICS)]
    # Passages: the answers, then, unless sections have the topics, passages that name them.
    named = {"section": [], "order": topic.tolist(), "citation": list(range(TOPICS))}[context]
    texts += [f"t{t}" for t in named]
    passages, sections = len(texts), TOPICS if context == "section" else 0
    rows, after = np.arange(passages), np.arange(count, passages)
    document = {"section": topic, "order": np.tile(np.arange(count), 2), "citation": rows}[context]
    parent, place = np.full(passages, -1), np.ones(passages, int)
    citations: list[Any] = [np.zeros(0, int), np.zeros(0, int)]
    if context == "section":
        parent, place = passages + topic, 1 + aspect
    elif context == "order":
        place[after] = 0
    else:
        citations = [np.arange(count), count + topic]
    order = generator.permutation(count)
    splits = np.repeat(["test", "dev", "train"], [TEST, DEV, count - TEST - DEV]).tolist()
    ids, names = [f"p{i}" for i in rows], [f"q{i}" for i in range(count)]
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(ids, [""] * passages, texts)
        writer.queries(names, [f"t{topic[p]} a{aspect[p]}" for p in order], splits, [[]] * count)
        writer.qrels(names, [ids[p] for p in order], [1] * count, list(range(count)), order.tolist())
        writer.structure(
            [
                [*ids, *(f"s{t}" for t in range(sections))], [""] * passages + titles[:sections],
                np.concatenate([document, np.arange(sections)]), np.concatenate([parent, np.full(sections, -1)]),
                np.concatenate([place, np.zeros(sections, int)]),
            ],
            [f"d{i}" for i in range(int(document.max()) + 1)], citations,
        )  # fmt: skip
        writer.close()
    alike = [
        generator.permutation(np.setdiff1d(np.flatnonzero(aspect == aspect[p]), p))[: CANDIDATES - 1] for p in order
    ]
    return np.stack([generator.permutation([p, *others]) for p, others in zip(order, alike, strict=True)])


def write_backbone(path: Path) -> Path:
    """A random BERT of one layer whose words are the topics and aspects."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path.mkdir()
    words = [*(f"t{t}" for t in range(TOPICS)), *(f"a{a}" for a in range(ASPECTS))]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(path / "vocab.txt"), model_max_length=32).save_pretrained(path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=2 * WIDTH, max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)
    return path


def reciprocal_rank(run: Path, data: Dataset, split: str) -> float:
    """Mean reciprocal rank of the one relevant passage."""
    labels, ranked = data.split_qrels(split), Run.read(run)
    relevant = dict(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    hits = zip(ranked.query.tolist(), ranked.passage.tolist(), ranked.rank.tolist(), strict=True)
    return float(sum(1 / rank for query, passage, rank in hits if relevant.get(query) == passage) / len(relevant))


def main() -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", nargs="+", default=["section", "order", "citation"])
    parser.add_argument("--systems", nargs="+", default=["colbert", "lim"])
    parser.add_argument("--epochs", type=int, default=40, help="of 15 steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[], help="of train_reranker")
    options = parser.parse_args()
    changes = {name: read_yaml(value) for name, _, value in (text.partition("=") for text in options.settings)}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[CHECKPOINTS] = str(folder / "checkpoints")
        backbone = str(write_backbone(folder / "bert"))
        for context in options.context:
            hits = write_dataset(folder / context, context)
            data, graph, first = Dataset(folder / context), folder / f"graph-{context}", folder / f"first-{context}"
            with drafting(first, "run") as draft:
                Run.from_hits(np.arange(len(hits)), hits, np.zeros(hits.shape)).write(draft)
            build_document_graph(BuildDocumentGraph(), dataset=data.path, document_graph=graph)
            for system in options.systems:
                kind, started, out = SYSTEMS[system].kind, time.perf_counter(), folder / f"{context}-{system}"
                values = {
                    "kind": kind, "backbone": backbone, "epochs": options.epochs, "learning_rate": 1e-3,
                    "head_learning_rate": 1e-3, "dropout": 0.0, "weight_decay": 0.0, "precision": "fp32",
                    "token_width": WIDTH, "query_length": 8, "passage_length": 8, "expand_queries": False,
                    "titles": False, "negatives_from": "corpus", "in_batch_negatives": True, "dev_queries": DEV,
                    "frozen_layers": 0, "graph_heads": 4, "seed": options.seed,
                }  # fmt: skip
                train_reranker(
                    TrainReranker.model_validate(values | (changes if kind != "colbert" else {})),
                    dataset=data.path, first_run=first, document_graph=graph, reranker=out,
                )  # fmt: skip
                scorer = out
                if kind != "colbert":
                    scorer = folder / f"{out.name}-scorer"
                    settings = EncodeContext(precision="fp32")
                    encode_context(settings, dataset=data.path, document_graph=graph, reranker=out, scorer=scorer)
                run = folder / f"{out.name}-run"
                rerank(
                    Rerank(system=system, depth=CANDIDATES, precision="fp32"),
                    dataset=data.path, first_run=first, scorer=scorer, run=run,
                )  # fmt: skip
                curve = [value for _, value in read_history(out)["train_reranker"].curves["dev/reranked_AP"]]
                share = read_manifest(out).metrics.get("context_share")
                shown = " ".join(f"{value:.2f}" for value in curve[:: max(1, len(curve) // 8)])
                rows.append(
                    (
                        context, SYSTEMS[system].title, f"{reciprocal_rank(run, data, 'test'):.3f}", shown,
                        "" if share is None else f"{share:.3f}", f"{time.perf_counter() - started:.0f}",
                    )
                )  # fmt: skip
    show(
        f"{options.epochs} epochs, {' '.join(options.settings) or 'the form of the paper'}",
        ("only in", "system", "MRR, test", "dev MAP by epoch", "λ", "seconds"), rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
