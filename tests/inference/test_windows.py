"""Long passages in windows: their texts, their vectors, and a search that scores a passage by its best window."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from published_folders import write_transformer
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, read_rows
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.windows import later_windows
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.outcome import BundleDualEncoder
from gnn_encoder.steps import encode as module
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.encode import encode

LENGTH, OVERLAP = 8, 2
WORDS = ["old", "river", "violin", "copper", "heavy", "garden", "winter", "letter", "stone", "market"]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("bert") / "bert")


def test_a_window_of_blanks_is_left_out(tmp_path: Path) -> None:
    """Tokenizers of bytes, as RoBERTa's, make a token of each blank, and cut its span to nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = {"special_tokens": ["<s>", "</s>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    tokenizer.train_from_iterator(["the river is old", "the river"], trainers.BpeTrainer(vocab_size=290, **special))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", pad_token="</s>")
    encoder: Any = SimpleNamespace(tokenizer=fast, prompt="", max_length=10)
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0", "p1"], ["", ""], [f"the river{' ' * 60}is old", "the river is old " * 4])
        writer.close()
    passages = Dataset(tmp_path / "dataset").passages
    cut = fast(
        passages.take(np.array([0])).full_texts(), truncation=True, max_length=10, return_overflowing_tokens=True
    )
    ((rows, windows),) = later_windows(encoder, passages, 0)
    assert (rows == 0).sum() < len(cut["input_ids"]) - 1, "control: there are windows of blanks"
    assert windows[0].endswith("is old") and (rows == 1).sum() > 1 and all(map(str.strip, windows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of 1 to 40 words, in an order by chance."""
    draw = np.random.default_rng(3)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 41))) for _ in range(30)]
    path = tmp_path_factory.mktemp("long") / "dataset"
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{row}" for row in range(30)], [""] * 30, texts)
        writer.queries([f"q{row}" for row in range(6)], texts[:6], ["train"] * 3 + ["test"] * 3, [[] for _ in range(6)])
        writer.qrels(
            [f"q{row}" for row in range(6)], [f"p{row}" for row in range(6)], [1] * 6, [*range(6)], [*range(6)]
        )
        writer.close()
    return path


def encoders_of(backbone: Path, **options: Any) -> DualEncoder:
    lengths = {"query_length": 32, "passage_length": LENGTH}
    return DualEncoder.from_backbone(str(backbone), share_encoders=True, **lengths, **options)


def by_slices(encoder: Any, texts: list[str], overlap: int) -> tuple[list[int], list[str]]:
    """The later windows by slices of each text's words, every one of which is a token."""
    size = LENGTH - 2 - len(encoder.prompt.split())
    overlap = min(overlap, size // 2)
    rows, windows = [], []
    for row, text in enumerate(texts):
        words, start = text.split(), 0
        while start + size < len(words):
            start += size - overlap
            rows.append(row)
            windows.append(" ".join(words[start : start + size]))
    return rows, windows


@pytest.mark.parametrize("prompt", ["", "the garden "])
@pytest.mark.parametrize("overlap", [0, 2, 3])
def test_windows_are_slices_that_overlap(data: Path, backbone: Path, overlap: int, prompt: str) -> None:
    encoder = encoders_of(backbone, passage_prompt=prompt).passage_encoder
    passages = Dataset(data).passages
    ((rows, texts),) = later_windows(encoder, passages, overlap)
    expected = by_slices(encoder, passages.take(np.arange(30)).full_texts(), overlap)
    assert (rows.tolist(), texts) == expected and len(texts) > 50
    assert by_slices(encoder, passages.take(np.arange(30)).full_texts(), 1) != expected  # control


def test_windows_share_at_most_half_of_their_tokens(data: Path, backbone: Path) -> None:
    encoder, passages = encoders_of(backbone).passage_encoder, Dataset(data).passages
    for overlap in ((LENGTH - 2) // 2, LENGTH):
        ((rows, texts),) = later_windows(encoder, passages, overlap)
        assert (rows.tolist(), texts) == by_slices(encoder, passages.take(np.arange(30)).full_texts(), LENGTH)


def run(data: Path, backbone: Path, folder: Path, **settings: Any) -> None:
    chosen = Encode(
        encoder=str(backbone), passage_length=LENGTH, query_length=32, precision="fp32", vector_type="fp32", **settings
    )
    outputs = {name: folder / name for name in ("dual_encoder", "passage_vectors")}
    encode(chosen, dataset=data, **outputs)
    bundling = BundleDualEncoder(bm25=False, precision="fp32", vector_type="fp32")
    bundle_dual_encoder(bundling, dataset=data, bundle=folder / "bundle", **outputs)


def test_a_passage_scores_as_its_best_window(data: Path, backbone: Path, tmp_path: Path, monkeypatch) -> None:
    run(data, backbone, tmp_path / "windows", long_passages="windows", window_overlap=OVERLAP)
    run(data, backbone, tmp_path / "cut")
    folders = [tmp_path / name / "passage_vectors" for name in ("windows", "cut")]
    assert np.array_equal(*map(read_vectors, folders))  # the first windows
    queries = read_rows(folders[0], EVALUATED)

    encoder = encoders_of(backbone).passage_encoder
    texts = Dataset(data).passages.take(np.arange(30)).full_texts()
    rows, windows = by_slices(encoder, texts, OVERLAP)
    scores = queries @ encode_texts(encoder, [*texts, *windows], precision="fp32").T
    best = np.full((len(queries), 30), -np.inf, np.float32)
    np.maximum.at(best.T, np.array([*range(30), *rows]), scores.T)
    hits = PassageIndex.read(Bundle.read(tmp_path / "windows" / "bundle")).search(queries, 30)
    np.testing.assert_allclose(np.take_along_axis(best, hits[1], axis=1), hits[0], rtol=1e-4)
    np.testing.assert_allclose(hits[0], -np.sort(-best, axis=1), rtol=1e-4)
    cut = PassageIndex.read(Bundle.read(tmp_path / "cut" / "bundle")).search(queries, 30)
    assert not np.allclose(cut[0], hits[0], rtol=1e-3)  # control: other windows are better than the first ones

    # An update with the same texts encodes none again.
    monkeypatch.setattr(module, "encode_texts", None)
    settings = {"long_passages": "windows", "window_overlap": OVERLAP, "previous": str(folders[0])}
    run(data, backbone, tmp_path / "update", **settings)
    for name in ("windows", "window_passages", "vectors"):
        assert np.array_equal(read_rows(folders[0], name), read_rows(tmp_path / "update" / "passage_vectors", name))


@pytest.mark.parametrize("settings", [{"vectors": "folder"}, {"encoder": "http://here/v1#m"}, {"window_overlap": 200}])
def test_windows_need_an_encoder_here_and_less_overlap(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"encode\.(long_passages|window_overlap)"):
        Encode(long_passages="windows", **settings)
    Encode(long_passages="windows")
