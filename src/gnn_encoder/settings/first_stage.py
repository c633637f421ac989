"""Settings of the step that gives the hits to re-rank."""

from pathlib import Path

from gnn_encoder.settings.shared import Inference
from gnn_encoder.settings.systems import LEXICAL
from gnn_encoder.settings.values import Count, PositiveInt

BM25, POOL = "bm25", "pool"
BUNDLE = "Bundle"
"""Name of a bundle in the tables; which system it has is known when it is read."""
RUN_FILES = (".trec", ".run", ".txt", ".tsv")
"""Endings of a run file in an object store, each also with .gz. Any other address there is that of a bundle."""


class FirstStage(Inference):
    """Gives the hits that are re-ranked, and from which negatives are drawn.

    Where a run file or a pool has no query of train, or of dev, BM25's hits take their place. `bm25_retrieve` sets
    both depths, unless they are set here, too.
    """

    source: str = BM25
    """`bm25`; `pool`: the candidates given with the data, in BM25's order; a TREC run file, plain or .gz; or the folder
    of a finished run, such as ROOT/latest: its bundle is searched, as by `gnn-encoder search`. Run files and bundles
    may be addresses, `s3://BUCKET/a.trec` and `s3://BUCKET/BUNDLE`."""
    train_depth: Count = 100
    """As in `bm25_retrieve`, for a bundle, 0 included. A run file and a pool are used as they are."""
    eval_depth: PositiveInt = 1000
    """As `train_depth`."""

    @property
    def bundle(self) -> str:
        """The folder or address of the bundle to search; empty for another source."""
        if self.source.startswith("s3://"):
            return "" if self.source.removesuffix(".gz").endswith(RUN_FILES) else self.source
        folder = Path(self.source)
        if self.source in (BM25, POOL) or not folder.is_dir():
            return ""
        return str(folder / "bundle" if (folder / "bundle").exists() else folder)

    @property
    def system(self) -> str:
        """The name of the first stage in all tables."""
        if self.source in (BM25, POOL):
            return LEXICAL if self.source == BM25 else "Pool"
        return BUNDLE if self.bundle else Path(self.source.removesuffix(".gz")).stem
