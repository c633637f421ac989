"""Adds labels to the bundle of a finished run, removes them, and takes a change back.

The result equals an update of the run with the same labels in the training data. In a bundle of the GNN-encoder only
the neighbourhoods of the labelled passages are propagated; `labels.pairs` is about bundles of labelled queries. The
work does not grow with the corpus, except for looking up ids and texts, and for the search of a new query's neighbours
where the graph has retrieved edges.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import transformers.models.auto.modeling_auto  # noqa: F401 - else the first model would import it, and count as work

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.added_labels import AddedLabel, AddedLabels, AddedNodes, Changes
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.labels.nodes import Edges, FinishedRun, changed_nodes, edges_of
from gnn_encoder.labels.pairs import LabelledRun, with_pairs
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.labels.versions import Versions
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.query_graph.extension import graph_around
from gnn_encoder.query_graph.propagation import Propagation

CHUNK = 2048
"""Passages propagated at a time."""


@dataclass(frozen=True)
class Outcome:
    """The labels in force after a change, the rows of the passages whose vectors were computed, and the seconds.

    `effect`: the change in words.
    """

    labels: list[AddedLabel]
    changed: np.ndarray
    effect: str
    seconds: float


def opened(bundle: Bundle) -> FinishedRun | LabelledRun:
    """Opens what a bundle was made from; raises UserError for a bundle that cannot take labels."""
    return LabelledRun.of(bundle, bundle.labelled) if bundle.labelled else FinishedRun.of(bundle)


def add_labels(path: Path, wanted: Sequence[Wanted]) -> Outcome:
    """Adds labels to the bundle that the link `path` names; the link then names a new version of the bundle.

    Raises:
        UserError: a label that `Known.checked` refuses, or a bundle that cannot take labels.
    """
    began = time.perf_counter()
    with Versions.of(path) as versions:
        run = opened(Bundle.read(path))
        return _changed(run, versions, [*run.known.labels, *run.known.checked(wanted)], began)


def remove_labels(path: Path, wanted: Sequence[Wanted]) -> Outcome:
    """Removes added labels; raises UserError for one that was not added."""
    began = time.perf_counter()
    with Versions.of(path) as versions:
        run = opened(Bundle.read(path))
        labels = [(folded(label.query), label.passage_id) for label in run.known.labels]
        staying = set(labels)
        for request in wanted:
            label = folded(request.query), request.passage_id
            if label not in staying:
                raise request.refused("no such label was added: see gnn-encoder labels list")
            staying.remove(label)
        kept = [known for known, label in zip(run.known.labels, labels, strict=True) if label in staying]
        return _changed(run, versions, kept, began)


def replace_labels(path: Path, labels: Sequence[AddedLabel]) -> Outcome:
    """Makes `labels` the added labels of a bundle; leaves out those whose passage the bundle does not have."""
    began = time.perf_counter()
    with Versions.of(path) as versions:
        run = opened(Bundle.read(path))
        passages = run.known.passage_rows([label.passage_id for label in labels])
        return _changed(run, versions, [label for label in labels if label.passage_id in passages], began)


def _changed(run: FinishedRun | LabelledRun, versions: Versions, labels: list[AddedLabel], began: float) -> Outcome:
    changes, fresh = with_pairs(run, labels) if isinstance(run, LabelledRun) else _with_nodes(run, labels)
    versions.write(run.bundle, AddedLabels(labels, changes))
    effect, use = f"{len(fresh):,} passages have a new vector", run.bundle.label_use
    if len(fresh) == 1:
        effect = "1 passage has a new vector"
    elif use and not use.weight:
        effect = "no score changes, because the run gave labels the weight 0: the next run reads them and weighs anew"
    elif use and use.method == "fusion":
        effect = "labelled words, sum and memory count at once; the next run learns the adapter and the fusion anew"
    elif use and not use.changes_vectors:
        effect = "no vector changes, a search looks at the queries of the labels"
    return Outcome(labels, fresh, effect, time.perf_counter() - began)


def _with_nodes(run: FinishedRun, labels: list[AddedLabel]) -> tuple[Changes | None, np.ndarray]:
    former = run.bundle.changes
    nodes = changed_nodes(run, labels, former.nodes if former else None)
    changes, fresh = with_vectors(run, nodes, former)
    return changes if len(nodes) else None, fresh


def with_vectors(run: FinishedRun, nodes: AddedNodes, former: Changes | None) -> tuple[Changes, np.ndarray]:
    """Returns the changes that `nodes` make, and the rows whose vectors were computed for it.

    A vector of `former` is kept if the edges into its passage come from the same queries with the same edges.
    """
    gnn = run.sources.gnn.to(device())
    rows = _differing(run, nodes, None) if gnn.config.layers else np.empty(0, np.int64)
    fresh, vectors = rows, np.empty((len(rows), gnn.config.width), np.float32)
    if former and former.nodes is not None:
        fresh = np.intersect1d(rows, _differing(run, nodes, former.nodes))
        kept = np.setdiff1d(rows, fresh)
        vectors[np.searchsorted(rows, kept)] = former.vectors[np.searchsorted(former.rows, kept)]
    encoding = run.sources.encoding
    graph, query_vectors = graph_around(run.sources.graph, encoding.queries, nodes, fresh)
    propagation = Propagation(gnn, graph, query_vectors, run.sources.cached_passages)
    for start in range(0, len(fresh), CHUNK):
        batch = fresh[start : start + CHUNK]
        vectors[np.searchsorted(rows, batch)] = propagation.passages(batch, encoding.passages[batch])
    return Changes(rows, vectors, nodes), fresh


def _differing(run: FinishedRun, nodes: AddedNodes, former: AddedNodes | None) -> np.ndarray:
    """Returns the passages that have or had an edge to a query with changed edges; int64, ascending.

    The earlier edges of a query in `former` are there. Those of other queries are in the run's graph.
    """
    every = [nodes, former] if former else [nodes]
    edges: list[dict[str, Edges]] = [
        {name: edges_of(added.edges[i], added.labelled[i]) for i, name in enumerate(added.ids)} for added in every
    ]
    stored = {
        name: run.stored_edges(int(node))
        for added in every
        for name, node in zip(added.ids, added.replaced, strict=True)
    }
    passages: set[int] = set()
    for name in stored:
        now, before = edges[0].get(name, stored[name]), edges[-1].get(name, stored[name]) if former else stored[name]
        if now != before:
            passages |= now.keys() | before.keys()
    return np.array(sorted(passages), np.int64)
