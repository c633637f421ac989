"""Says what a reader of figures has to know about the data behind them: labels and hits that are not as they seem."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.history import Record
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.settings.systems import GNN_ENCODER, LEXICAL

SAMPLE = 1000
"""Passages, the first ones, in which words between spaces are counted."""
LONG = 15.0
"""Characters of a word on average from which on the texts are taken to have no spaces between words. English has 6."""

ORDERS = (
    "generated queries show large differences between systems, but not which system is best. On three data sets, "
    "`titles` ordered 26 of 32 pairs of different systems as people's queries do, and its best system was 0.00 to 0.11 "
    "MRR@10 below people's best (docs/notebook.md, Do generated queries order systems as people's do)"
)
"""How far figures on generated queries can be believed, from the sets where people's are known, too."""


def written_remarks(splits: Sequence[str]) -> list[str]:
    """Returns what a reader of figures on generated queries has to know; `splits`: those that have such queries."""
    return [f"{' and '.join(splits)}: {ORDERS}"] if splits else []


def in_sample_remarks(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns which dev figures are of queries that have chosen a weight of their system; `facts`: of each system.

    A weight of 0 leaves a system as it is. A sum with BM25, or with a re-ranker that is not best alone, ranks each dev
    query by the weight that the others choose.
    """
    tuned = [name for name, of in facts.items() if of.get("in_sample")]
    said = f"dev figures of {', '.join(tuned)} (and of their sums) are in-sample: these queries chose a weight there"
    return [said] if tuned else []


def graph_remarks(record: Record | None) -> list[str]:
    """Returns what dev figures of the GNN-encoder are, if dev queries chose its graph; `record`: of `choose_graph`."""
    tried = [name for name in record.metrics if name.startswith("dev/")] if record else []
    said = f"dev figures of {GNN_ENCODER} (and of its sums) are in-sample: these queries chose its graph"
    return [f"{said} among {len(tried) - 1} variants"] if len(tried) > 2 else []


def data_remarks(data: Dataset, split: str) -> Iterator[str]:
    """Yields what the labels and ids of a split mean for all figures on its queries."""
    judged, m = data.judged(split).positive(), len(data.passages)
    queries = labelled_queries(judged)
    missing, reachable = judged.where(judged.passage >= m), judged.where(judged.passage < m)
    names = data.judged_ids().take(pa.array(missing.passage))
    themselves = pc.equal(names, data.queries.column("query_id").take(pa.array(missing.query))).to_numpy()
    themselves &= data.identical[missing.query] >= 0
    lost = len(queries) - len(labelled_queries(reachable))
    without = f"; {lost:,} queries have no other relevant passage and count 0" if lost else ""
    for rows, passage in ((~themselves, "a passage that the corpus lacks"), (themselves, "the query itself")):
        if count := int(rows.sum()):
            yield (
                f"{count:,} of {len(judged.query):,} {split} labels name {passage}: they count as missed, as trec_eval "
                f"counts them{without}"
            )
            without = ""
    if data.traffic is not None and (clicked := int((data.traffic[queries] > 0).sum())):
        yield (
            f"{clicked:,} of {len(queries):,} {split} queries have labels from clicks in a log (ingest.log), which "
            "nobody judged: a relevant passage that users were not shown counts as not relevant"
        )
    if alike := int((data.identical[queries] >= 0).sum()):
        does = "have the id of a passage, which is left out of their hits, as BEIR does (ingest.ignore_identical_ids)"
        if split in data.written_splits:
            does = "quote a passage, which is left out of their hits"
        yield f"{alike:,} of {len(queries):,} {split} queries {does}"


def hit_remarks(data: Dataset, split: str, queries: int, without_hits: Mapping[str, int]) -> Iterator[str]:
    """Yields which systems found nothing for some of a split's `queries`, {system: count}."""
    for system, count in without_hits.items():
        reason = f": {_no_word(data)}" if system == LEXICAL else ""
        yield f"{system} found nothing for {count:,} of {queries:,} {split} queries, which count 0{reason}"


def _no_word(data: Dataset) -> str:
    """Says why BM25 finds nothing, with the number of words a passage if spaces are few."""
    texts = data.passages.take(np.arange(min(SAMPLE, len(data.passages)))).full_texts()
    words = [text.split() for text in texts]
    count, characters = sum(map(len, words)), sum(len(word) for of_text in words for word in of_text)
    reason = "no passage has one of their words"
    if characters > LONG * count:
        reason += f"; the texts have no spaces between words ({count / len(texts):.1f} words a passage)"
    return reason
