"""A corpus is tokenized once per tokenizer and length, and every reader sees what the tokenizer itself gives."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.folder import CLOCK_TICK, drafting
from gnn_encoder.inference import tokens as module
from gnn_encoder.inference.tokens import passage_tokens
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.tracking.context import TOKENS
from gnn_encoder.tracking.progress import Progress


def test_made_once_and_mapped(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKENS, str(tmp_path / "tokens"))
    tokenizer = load_tokenizer(str(tiny_backbone))
    texts = tiny_dataset.passages.take(np.arange(100)).full_texts()
    expected = tokenizer(texts, truncation=True, max_length=8)["input_ids"]
    tokens = passage_tokens(tokenizer, tiny_dataset.passages, 8)
    assert isinstance(tokens.ids, np.memmap)
    assert [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)] == expected
    rows = np.array([7, 99, 7, 0])
    taken = tokens.take(rows)
    assert [taken.ids[a:b].tolist() for a, b in zip(taken.offsets, taken.offsets[1:], strict=False)] == [
        expected[row] for row in rows
    ]

    passes = []
    monkeypatch.setattr(module, "drafting", lambda *a: passes.append(a) or drafting(*a))
    tokenizer("the state of a tokenizer that has cut and padded", truncation=True, max_length=4, padding="max_length")
    assert np.array_equal(passage_tokens(tokenizer, tiny_dataset.passages, 8).ids, tokens.ids) and not passes
    passage_tokens(tokenizer, tiny_dataset.passages, 9)
    assert len(passes) == 1
    tokenizer.add_tokens(["river"])
    passage_tokens(tokenizer, tiny_dataset.passages, 8)
    assert len(passes) == 2
    shutil.rmtree(tmp_path / "tokens")
    passage_tokens(tokenizer, tiny_dataset.passages, 8)
    assert len(passes) == 3 and not list((tmp_path / "tokens").glob(".partial-*"))
    # One bit, or one token less, would change vectors in silence.
    (ids,) = (tmp_path / "tokens").glob("*/ids.bin")
    whole = ids.read_bytes()
    for number, damaged in enumerate((bytes([whole[0] ^ 1]) + whole[1:], whole[:-4]), start=4):
        time.sleep(CLOCK_TICK / 1e9)
        ids.write_bytes(damaged)
        assert passage_tokens(tokenizer, tiny_dataset.passages, 8).ids.tobytes() == whole
        assert len(passes) == number and ids.read_bytes() == whole


def test_without_a_folder_it_is_this_process_own(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKENS, raising=False)
    tokenizer = load_tokenizer(str(tiny_backbone))
    shown: list[Progress] = []

    def progress(stage: str, total: int, unit: str) -> Progress:
        shown.append(Progress("train_dpr", stage, total, unit))
        return shown[-1]

    tokens = passage_tokens(tokenizer, tiny_dataset.passages, 8, progress=progress)
    assert len(tokens) == 100 and not Path(str(tokens.ids.filename)).exists()
    assert [(line.stage, line.done, line.total) for line in shown] == [("tokenizing", 100, 100)]
