"""How a system answers dev queries: what `min_confidence` and the watch of a service are calibrated on.

first_hits.parquet (evaluation)  system, score and wrong of each system's first hit, a row for each labelled dev query
calibration.parquet (bundle)     of the bundle's system the same, with the dev query's text; then the texts of at most
                                 `TRAINING` training queries, without score
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.dataset import Dataset, Qrels
from gnn_encoder.artifacts.tables import Run, pair_keys
from gnn_encoder.errors import Damaged, one_line

FIRST_HITS, CALIBRATION = "first_hits.parquet", "calibration.parquet"
TRAINING = 500


@dataclass(frozen=True)
class FirstHits:
    """A system's first hits for the labelled dev queries, by ascending query row.

    score   fp64 [n], as the system ranks; minus infinity: no hit
    wrong   bool [n]: the passage has no label of at least 1; a passage without a label counts as wrong
    """

    score: np.ndarray
    wrong: np.ndarray

    @classmethod
    def of(cls, run: Run, queries: np.ndarray, qrels: Qrels) -> "FirstHits":
        """Returns the first hits of `queries` [n], ascending, in a run; `qrels`: their labels."""
        first, positive = run.of(queries, 1), qrels.positive()
        position = np.searchsorted(queries, first.query)
        score, wrong = np.full(len(queries), -np.inf), np.ones(len(queries), bool)
        score[position] = first.score
        labelled = pair_keys(positive.query, positive.passage)
        wrong[position] = ~np.isin(pair_keys(first.query, first.passage), labelled)
        return cls(score, wrong)

    @staticmethod
    def write(folder: Path, systems: Mapping[str, "FirstHits"]) -> None:
        """Writes those of all systems into a draft."""
        names = [name for name, hits in systems.items() for _ in hits.score]
        score, wrong = (
            np.concatenate([np.empty(0, kind), *(getattr(hits, field) for hits in systems.values())])
            for field, kind in (("score", np.float64), ("wrong", bool))
        )
        columns = {"system": pa.array(names, pa.string()), "score": score, "wrong": wrong}
        pq.write_table(pa.table(columns), folder / FIRST_HITS)

    @classmethod
    def read(cls, file: Path, system: str) -> "FirstHits":
        """Reads those of one system; without rows if the file lacks them."""
        table = pq.read_table(file, filters=pc.field("system") == system)
        return cls(table.column("score").to_numpy(), table.column("wrong").to_numpy())


@dataclass(frozen=True)
class Calibration:
    """`calibration.parquet`.

    system    whose first hits they are: as in `Serving.system`
    queries   texts of the dev queries [n]
    hits      their first hits
    training  texts of training queries
    """

    system: str
    queries: list[str]
    hits: FirstHits
    training: list[str]

    @classmethod
    def of(cls, data: Dataset, rows: np.ndarray, hits: FirstHits, system: str) -> "Calibration":
        """Returns that of a data set; `rows`: of its labelled dev queries [n]."""
        train = data.query_rows("train")
        sample = np.random.default_rng(0).permutation(train)[:TRAINING]
        return cls(system, data.query_texts(rows), hits, data.query_texts(np.sort(sample)))

    def within(self, data: Dataset) -> "Calibration":
        """Returns that of the queries whose texts a data set still has: an update may have left some out."""
        texts = data.queries.column("text").cast(pa.large_string())
        dev, train = (
            pc.is_in(pa.array(queries, pa.large_string()), value_set=texts).to_numpy(zero_copy_only=False)
            for queries in (self.queries, self.training)
        )
        hits = FirstHits(self.hits.score[dev], self.hits.wrong[dev])
        queries, training = (
            [text for text, is_there in zip(of, there, strict=True) if is_there]
            for of, there in ((self.queries, dev), (self.training, train))
        )
        return replace(self, queries=queries, hits=hits, training=training)

    def write(self, file: Path) -> None:
        """Writes the file."""
        n, t = len(self.queries), len(self.training)
        columns = {
            "query": pa.array([*self.queries, *self.training], pa.large_string()),
            "score": pa.array([*self.hits.score.tolist(), *[None] * t], pa.float64()),
            "wrong": pa.array([*self.hits.wrong.tolist(), *[None] * t], pa.bool_()),
            "split": pa.array(["dev"] * n + ["train"] * t, pa.string()),
        }
        pq.write_table(pa.table(columns).replace_schema_metadata({"system": self.system}), file)

    @classmethod
    def read(cls, file: Path) -> "Calibration":
        """Reads the file; raises Damaged."""
        try:
            table = pq.read_table(file, columns=["query", "score", "wrong", "split"])
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"{file} cannot be read ({one_line(error)[:160]}): make it again") from None
        dev, train = (table.filter(pc.equal(table.column("split"), split)) for split in ("dev", "train"))
        hits = FirstHits(dev.column("score").to_numpy(), dev.column("wrong").to_numpy().astype(bool))
        system = (table.schema.metadata or {}).get(b"system", b"").decode()
        return cls(system, dev.column("query").to_pylist(), hits, train.column("query").to_pylist())
