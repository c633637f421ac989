"""Writes a bundle's query encoder or its passage vectors for other programs, and asks both the same questions.

sentence-transformers   the query encoder as a folder that SentenceTransformer loads, with its pooling and its scaling
parquet                 `passages.parquet`: passage_id, title, text and the vector, a row for each vector, in blocks

Each export is replayed before it gets its name: the encoder must give the bundle's vectors of some texts, and the file
the bundle's vectors and hits. So an export that another program would read otherwise is refused and leaves nothing.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts import Bundle
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import LAYOUT, TextEncoder
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.passage_index import best_of_blocks
from gnn_encoder.tracking.progress import Progress

ROWS = 16_384
"""Vectors of a block of the Parquet file: 25 MB at width 384."""
QUESTIONS = 200
"""Texts that both are asked."""
CLOSE = 1e-5
"""Largest difference of two vectors' components, relative to the length of the vector."""
PASSAGES, FACTS = "passages.parquet", "export.json"
HOW = {
    "sentence-transformers": "SentenceTransformer('{0}') reads it",
    "parquet": f"any reader of Parquet reads {{0}}/{PASSAGES}",
}
"""Format → who reads an export in the folder {0}."""


def export(bundle: Bundle, form: str, target: Path, progress: Progress | None = None) -> str:
    """Writes an export into the folder `target`, which must not exist, and returns what was compared, in words.

    Raises:
        UserError: another format, a target that exists, a package is missing that the replay needs, or the replay
            differs.
    """
    if form not in HOW:
        raise UserError(f"{form!r} is no format of export: choose {' or '.join(HOW)}")
    with _new_folder(target) as folder:
        asked = questions_of(bundle)
        encoder = TextEncoder.load(bundle.query_encoder_path)
        vectors = encode_texts(encoder, asked, precision="fp32")
        if form == "parquet":
            _write_passages(bundle, folder, progress)
            said = _replay_passages(bundle, folder, vectors)
        else:
            _write_encoder(bundle, encoder, folder)
            said = _replay_encoder(folder, asked, vectors)
        facts = {
            "format": form,
            "system": bundle.system,
            "served_as": bundle.serving.system,
            "similarity": "inner product",
            "width": int(bundle.vectors.shape[1]),
            "bundle_digest": bundle.manifest.digest,
            "replay": said,
        }
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return said


def questions_of(bundle: Bundle) -> list[str]:
    """Returns texts to ask for: the titles, or the first words, of passages that are evenly spaced over the corpus."""
    rows = np.unique(np.linspace(0, len(bundle.passages) - 1, QUESTIONS).astype(np.int64))
    some = bundle.passages.take(rows)
    texts = (title or " ".join(text.split()[:12]) for title, text in zip(some.titles, some.texts, strict=True))
    return [text for text in texts if text.strip()]


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yields a folder that gets the name `target` at the end; after an error nothing is left."""
    if target.exists():
        raise UserError(f"{target} exists: name a folder that does not")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_encoder(bundle: Bundle, encoder: TextEncoder, folder: Path) -> None:
    for source in sorted(bundle.query_encoder_path.iterdir()):
        if source.name != LAYOUT:
            shutil.copyfile(source, folder / source.name)
    names = ["Transformer", "Pooling", *(["Normalize"] if encoder.normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    for module in modules[1:]:
        (folder / str(module["path"])).mkdir()
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    pooling = {"word_embedding_dimension": encoder.width} | {
        key: mode == encoder.pooling for mode, key in modes.items()
    }
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": encoder.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "dot", "prompts": {}},
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _replay_encoder(folder: Path, asked: Sequence[str], vectors: np.ndarray) -> str:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError('the replay needs sentence-transformers: pip install "gnn-encoder[export]"') from None
    found = SentenceTransformer(str(folder), device="cpu").encode(list(asked), batch_size=32, show_progress_bar=False)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    worst = np.abs((np.asarray(found, np.float32) - vectors) / np.maximum(lengths, np.finfo(np.float32).tiny)).max(
        axis=1
    )
    if not (worst <= CLOSE).all():
        text = asked[int(np.argmax(worst))]
        raise UserError(
            f"sentence-transformers gives other vectors: {text!r} differs by {worst.max():.2g}; not exported"
        )
    return f"{len(asked):,} texts have the bundle's vectors, within {CLOSE:g}"


def _write_passages(bundle: Bundle, folder: Path, progress: Progress | None) -> None:
    stored = bundle.vectors
    width = stored.shape[1]
    texts = [pa.field(name, pa.string()) for name in ("passage_id", "title", "text")]
    schema = pa.schema([*texts, pa.field("vector", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(folder / PASSAGES, schema, compression="zstd") as writer:
        for start in range(0, len(stored), ROWS):
            block = np.ascontiguousarray(stored[start : start + ROWS], np.float32)
            some = bundle.passages.take(_passages(bundle, np.arange(start, start + len(block))))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), width)
            columns = [pa.array(column, pa.string()) for column in (some.ids, some.titles, some.texts)]
            writer.write_table(pa.table([*columns, vectors], schema=schema), row_group_size=ROWS)
            if progress:
                progress.advance(len(block))


def _replay_passages(bundle: Bundle, folder: Path, vectors: np.ndarray) -> str:
    """Compares every id and vector, and the first ten hits of each question."""
    stored, start = bundle.vectors, 0

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal start
        for batch in pq.ParquetFile(folder / PASSAGES).iter_batches(ROWS, columns=["passage_id", "vector"]):
            rows = np.arange(start, start + len(batch))
            block = batch.column("vector").flatten().to_numpy().reshape(len(batch), -1)
            ids = bundle.passages.ids().take(pa.array(_passages(bundle, rows)))
            if (
                not np.array_equal(block, stored[start : start + len(block)])
                or batch.column("passage_id") != ids.combine_chunks()
            ):
                raise UserError(f"{PASSAGES} has other vectors than the bundle from row {start:,} on; not exported")
            yield block, rows
            start += len(batch)

    k = min(10, len(stored))
    _, found = best_of_blocks(blocks(), vectors, k)
    if start != len(stored) or not np.array_equal(found, exact.search(stored, vectors, k)[1]):
        raise UserError(f"{PASSAGES} has {start:,} rows, and other first hits than the bundle; not exported")
    return f"{start:,} vectors are the bundle's, and so are the first hits of {len(vectors):,} texts"


def _passages(bundle: Bundle, rows: np.ndarray) -> np.ndarray:
    """Returns the passages of vectors [n]."""
    return rows if bundle.vector_passages is None else np.asarray(bundle.vector_passages[rows])
