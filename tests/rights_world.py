"""A corpus of which callers may see a part, in bundles of each kind; markers say of what a text is."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import numpy as np
import pyarrow as pa
import torch
from bundles import write_bm25
from conftest import DETAILS, TOPICS
from labelled_bundles import built, bundle_of
from tiny_graph import encode, write_models

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, DocumentContext, drafting
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.data.fields import FieldColumns, of_records
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.nodes import encode_texts
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.serving.rights import Rights
from gnn_encoder.settings.fusion import FuseParts, MakeParts
from gnn_encoder.steps.fuse_parts import fuse_parts
from gnn_encoder.steps.make_parts import make_parts

KEY = "a secret of this test, by which tokens are signed"
GROUPS = [f"team{number}" for number in range(6)]
MARKER = re.compile(r"(?:mark|ask|prod|team)\d+")
FIELD = "groups"
RIGHTS = Rights(FIELD, KEY)


@dataclass(frozen=True)
class Corpus:
    """40 passages with their fields, and 60 queries: 45 of train, each with the passages that it is labelled for."""

    records: list[dict[str, Any]]
    labels: dict[int, set[int]]

    @classmethod
    def random(cls, seed: int = 3) -> "Corpus":
        """Passages of one to three groups, or none; each product is of few passages."""
        generator = np.random.default_rng(seed)
        records = [
            {
                FIELD: sorted({str(generator.choice(GROUPS)) for _ in range(generator.integers(4))}),
                "product": f"prod{generator.integers(12)}",
                "year": int(generator.integers(2000, 2004)),
            }
            for _ in range(40)
        ]
        needs = [int(generator.integers(12)) for _ in range(60)]
        return cls(records, {q: {need, *((need + 13,) if q % 4 == 0 else ())} for q, need in enumerate(needs)})

    def seen(self, groups: list[str]) -> set[int]:
        """The passages that a caller with these groups may see."""
        return {row for row, record in enumerate(self.records) if set(record[FIELD]) & set(groups)}

    def named(self, groups: list[str]) -> set[str]:
        """The markers that a caller may read: of these passages, and of queries that are labelled for them alone."""
        rows = self.seen(groups)
        products = {self.records[row]["product"] for row in rows}
        queries = {f"ask{query}" for query, labelled in self.labels.items() if labelled <= rows}
        return {f"mark{row}" for row in rows} | products | queries

    def write(self, path: Path) -> Path:
        """Writes the dataset."""
        generator = np.random.default_rng(0)
        texts = [f"the {generator.choice(DETAILS)} {generator.choice(TOPICS)} of mark{row}" for row in range(40)]
        with drafting(path, "dataset") as draft:
            writer = DatasetWriter(draft)
            writer.passages([f"mark{row}" for row in range(40)], [f"Title mark{row}" for row in range(40)], texts)
            query_texts = [f"what is {generator.choice(TOPICS)} ask{query}" for query in range(60)]
            splits = ["train"] * 45 + ["dev"] * 10 + ["test"] * 5
            writer.queries([f"ask{query}" for query in range(60)], query_texts, splits, [[] for _ in query_texts])
            pairs = [(query, row) for query, rows in self.labels.items() for row in sorted(rows)]
            query, row = zip(*pairs, strict=True)
            writer.qrels([f"ask{q}" for q in query], [f"mark{p}" for p in row], [1] * len(row), [*query], [*row])
            fields = FieldColumns()
            fields.add(of_records(self.records, ()), 40)
            columns = fields.columns()
            assert columns is not None
            writer.fields(columns)
            writer.close()
        return path


def write_bundles(corpus: Corpus, folder: Path, backbone: Path) -> dict[str, Path]:
    """Bundles that explain by labelled queries, a memory, a fusion, words, a graph, and two kinds of re-ranker."""
    dataset = corpus.write(folder / "dataset")
    models = write_models(folder, backbone)
    inputs = built(dataset, models["dual_encoder"], folder)
    weights = {"sum_weights": (0.5,), "memory_weights": (1.0,), "cluster_weights": (0.5,)}
    bundles = {name: bundle_of(inputs, folder, name, **weights) for name in ("sum", "max", "softmax", "clusters")}
    read = {name: inputs[name] for name in ("dataset", "passage_vectors", "bm25_index")}
    make_parts(MakeParts(), **read, parts=folder / "parts")
    for kind in ("linear", "field"):
        fuse_parts(FuseParts(kind=kind), **inputs, parts=folder / "parts", bundle=folder / kind)  # type: ignore[arg-type]
        bundles[kind] = folder / kind
    graph = encode(dataset, models, folder / "graph_of", shards=1)
    (folder / "latest").mkdir()
    places = {name: graph / name for name in ("bundle", "graph", "passage_vectors", "encoding")}
    for name, target in {**places, "dataset": dataset, "gnn_encoder": models["gnn_encoder"]}.items():
        (folder / "latest" / name).symlink_to(target)
    bundles["graph"] = folder / "latest" / "bundle"
    bundles["words"] = write_words(dataset, folder)
    with drafting(folder / "both", "bundle") as draft:
        Bundle.read(bundles["softmax"]).serve(draft, Serving("BM25 + Query memory", 0.4))
    bundles["both"] = folder / "both"
    torch.manual_seed(0)
    models = {"lite": ("colbert", LateInteraction.from_backbone(str(backbone), LateInteractionLayout(16, 24, 40)))}
    models["document"] = ("mix_im", DocumentReranker.of(models["lite"][1], "mix_im", heads=4))
    for parameter in models["document"][1].context.parameters():
        torch.nn.init.normal_(parameter, 0, 0.4)
    for name, (kind, model) in models.items():
        save_scorer(kind, model, folder / f"{name}-scorer")
        if isinstance(model, DocumentReranker):
            write_context(Dataset(dataset), model, folder / f"{name}-scorer")
        with drafting(folder / name, "bundle") as draft:
            serving = Serving(name, 0.4, reranking=Reranking("BM25 + Query memory", 0.7, 40, "fp32"))
            Bundle.read(folder / "both").serve(draft, serving, folder / f"{name}-scorer")
        bundles[name] = folder / name
    return bundles


def write_context(data: Dataset, model: DocumentReranker, folder: Path) -> None:
    """Passages in eight sections of four documents, which cite one another; a section's title is of other passages."""
    nodes, generator = np.arange(48), np.random.default_rng(0)
    section, is_section = np.where(nodes < 40, nodes // 5, nodes - 40), nodes >= 40
    graph = document_graph(
        40,
        document=(section // 2).astype(np.int32),
        parent=np.where(is_section, -1, 40 + section).astype(np.int32),
        reading_order=(6 * section + np.where(is_section, 0, 1 + nodes % 5)).astype(np.int32),
        citing=generator.integers(0, 40, 30).astype(np.int32),
        cited=generator.integers(0, 40, 30).astype(np.int32),
    )
    titles = pa.chunked_array([[f"Above mark{(5 * n + 20) % 40} of prod{n}" for n in range(8)]])
    tokens = encode_texts(model.text, data.passages, titles, np.ones(48, bool), precision="fp32")
    contexts = context_vectors(model.context, graph, tokens, np.arange(40))
    DocumentContext.write(folder, *contexts, graph, titles, data.corpus_digests)


def write_words(dataset: Path, folder: Path) -> Path:
    """A bundle that ranks by words alone."""
    with drafting(folder / "words", "bundle") as draft:
        Bundle.add_bm25(draft, write_bm25(dataset, folder / "index_of_words"))
        Bundle.complete(draft, Dataset(dataset), "BM25")
    return folder / "words"


def token_of(groups: Any, **more: Any) -> str:
    """A signed token of a caller."""
    return jwt.encode({"groups": groups, "exp": 2**33, **more}, KEY, "HS256")


class Checked:
    """Looks through all that a caller gets. `corpus` says what the caller may read."""

    def __init__(self, corpus: Corpus, groups: list[str]) -> None:
        self.corpus, self.groups = corpus, groups
        self.rows, self.named = corpus.seen(groups), corpus.named(groups)

    def answer(self, body: bytes, question: str = "") -> Any:
        """Checks the markers of an answer, and the ids of its hits; returns its JSON."""
        text = body.decode()
        others = set(MARKER.findall(text)) - self.named - set(MARKER.findall(question))
        assert not others, f"a caller of {self.groups} reads {sorted(others)}"
        answer = json.loads(text)
        for result in answer.get("results", []):
            hits = {int(hit["passage_id"].removeprefix("mark")) for hit in result["hits"]}
            assert hits <= self.rows, f"a caller of {self.groups} has the hits {sorted(hits - self.rows)}"
            for hit in result["hits"]:
                self._counts(hit)
        return answer

    def _counts(self, hit: dict[str, Any]) -> None:
        """Numbers in an explanation count no more than the caller may see."""
        why, row = hit.get("why") or {}, int(hit["passage_id"].removeprefix("mark"))
        queries = {query for query, rows in self.corpus.labels.items() if rows <= self.rows}
        for part in why.get("parts", []):
            if more := re.match(r"(\d+) more quer", part["source"]):
                labelled = {query for query in queries if row in self.corpus.labels[query] and query < 45}
                shown = [other for other in why["parts"] if MARKER.search(other["source"])]
                assert int(more[1]) + len(shown) <= len(labelled)
        if graph := why.get("graph"):
            assert max(graph["rank"], graph["plain_rank"]) <= len(self.rows)
            assert graph["others"] + len(graph["influences"]) <= len(queries)
