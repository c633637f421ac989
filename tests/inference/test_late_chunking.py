"""Late chunking: a window's vector is the mean of its tokens' vectors in a pass over a document, as transformers has
them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_folders import publish, write_transformer
from transformers import AutoModel, AutoTokenizer

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting, read_vectors
from gnn_encoder.artifacts.arrays import read_scored
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Graph
from gnn_encoder.inference.late_chunking import encode_late
from gnn_encoder.models.check import check_models
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.rungs import TRAINING
from gnn_encoder.steps.encode import encode
from gnn_encoder.tracking.progress import Progress

LENGTH, OVERLAP, POSITIONS, PROMPT = 10, 2, 64, "the garden "
WORDS = ["old", "river", "violin", "copper", "heavy", "winter", "letter", "stone", "market"]
DOCUMENTS = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3])
PLACES = np.array([2, 0, 1, 0, 1, 0, 0, 1, 2, 3, 4, 5])
COUNTS = (5, 12, 3, 6, 30, 9, 20, 0, 20, 150, 2, 0)
"""Words of each passage: documents of less and of more than a pass has, and a passage that is longer than a pass."""


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    return publish(write_transformer(folder / "raw"), folder / "bert", "mean", prompts={"document": PROMPT})


def write_data(folder: Path, documents: bool) -> Dataset:
    draw, m = np.random.default_rng(5), len(COUNTS)
    texts = [" ".join(draw.choice(WORDS, count)) for count in COUNTS]
    with drafting(folder, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{row}" for row in range(m)], [""] * m, texts)
        writer.queries(["q0", "q1"], ["old river", "heavy stone"], ["train", "test"], [[], []])
        writer.qrels(["q0", "q1"], ["p0", "p1"], [1, 1], [0, 1], [0, 1])
        if documents:
            nodes = [[f"p{row}" for row in range(m)], [""] * m, DOCUMENTS, np.full(m, -1), PLACES]
            writer.structure(nodes, [f"d{number}" for number in range(4)], [[], []])
        writer.close()
    return Dataset(folder)


def directly(backbone: Path, data: Dataset, documents: bool) -> list[list[np.ndarray]]:
    """The windows' vectors of each passage by transformers alone; passes are cut by the rule, written down anew."""
    tokenizer, model = AutoTokenizer.from_pretrained(backbone), AutoModel.from_pretrained(backbone).eval()
    texts = data.passages.take(np.arange(len(COUNTS))).full_texts()
    before = tokenizer(PROMPT)["input_ids"][:-1]
    size, room = LENGTH - len(before) - 1, POSITIONS - len(before) - 1
    groups = [[row] for row in range(len(texts))]
    if documents:
        groups = [[int(row) for row in np.argsort(PLACES) if DOCUMENTS[row] == number] for number in range(4)]
    vectors: list[list[np.ndarray]] = [[] for _ in texts]
    for group in groups:
        stream, windows = [], []
        for row in group:
            token_ids = tokenizer(texts[row], add_special_tokens=False)["input_ids"]
            start = 0
            windows.append((row, len(stream), len(stream) + min(size, len(token_ids))))
            while start + size < len(token_ids):
                start += size - OVERLAP
                windows.append((row, len(stream) + start, len(stream) + min(start + size, len(token_ids))))
            stream += token_ids
        while windows:
            begin, some = windows[0][1], [windows.pop(0)]
            while (
                windows
                and windows[0][2] - begin <= room
                and all(start < end for _, start, end in (some[-1], windows[0]))
            ):
                some.append(windows.pop(0))
            ids = [*before, *stream[begin : some[-1][2]], tokenizer.sep_token_id]
            with torch.inference_mode():
                hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
            for number, (row, start, end) in enumerate(some):
                first = start - begin + len(before) if number else 0
                last = end - begin + len(before) + (number == len(some) - 1)
                vectors[row].append(hidden[first:last].mean(axis=0))
    return vectors


@pytest.mark.parametrize("documents", [True, False])
def test_windows_as_transformers_computes_them(backbone: Path, tmp_path: Path, documents: bool) -> None:
    data = write_data(tmp_path / "data", documents)
    reading: dict[str, Any] = {"passage_length": LENGTH, "query_length": 32, "precision": "fp32", "normalize": "no"}
    outputs = {name: tmp_path / name for name in ("dual_encoder", "passage_vectors")}
    settings = Encode(
        encoder=str(backbone), long_passages="late", window_overlap=OVERLAP, vector_type="fp32", **reading
    )
    encode(settings, dataset=data.path, **outputs)
    vectors, of = read_scored(outputs["passage_vectors"])
    expected = directly(backbone, data, documents)
    assert of is not None and of.tolist() == [row for row, windows in enumerate(expected) for _ in windows]
    np.testing.assert_allclose(vectors, np.concatenate(expected), atol=2e-5)

    usual = np.asarray(read_vectors(outputs["passage_vectors"]))  # each passage alone
    first = np.asarray(vectors)[np.searchsorted(of, np.arange(len(COUNTS)))]
    alone = np.array([len(windows) == 1 for windows in expected]) & (
        np.bincount(DOCUMENTS)[DOCUMENTS] == 1 if documents else True
    )
    assert alone.any()
    np.testing.assert_allclose(first[alone], usual[alone], atol=2e-5)
    assert np.abs(first[~alone] - usual[~alone]).max() > 1e-2  # control: the text around it counts

    # A share of the passages, and small batches, give the same.
    encoder, share = DualEncoder.load(outputs["dual_encoder"]).passage_encoder, slice(3, 6)
    counted = partial(Progress, "late")
    some, passage_of = encode_late(
        encoder,
        data,
        OVERLAP,
        lambda *shape: np.empty(shape, np.float32),
        counted,
        share,
        precision="fp32",
        tokens_per_batch=70,
    )
    inside = (of >= 3) & (of < 6)
    assert (passage_of + 3).tolist() == of[inside].tolist()
    np.testing.assert_allclose(some, np.asarray(vectors)[inside], atol=2e-5)


def test_other_poolings_are_refused_before_the_first_step(backbone: Path, tmp_path: Path) -> None:
    def read(encoder: Path) -> Graph:
        ask = [f"encode.encoder={encoder}", f"shared.backbone={backbone}", "encode.long_passages=late"]
        ask += ["shared.query_length=20", "shared.passage_length=20", "encode.window_overlap=2"]
        return ladder(load_settings("quickstart", ask), TRAINING)

    check = [node for node in read(backbone).nodes if node.step in ("encode", "train_dpr", "train_dual_encoder")]
    assert len(check) == 4
    check_models(check)
    other = publish(write_transformer(tmp_path / "raw"), tmp_path / "other", "cls")
    with pytest.raises(UserError, match=r"encode: long_passages = late needs .* by mean, and '.*other' does not"):
        check_models(read(other).of("encode") + check[1:] + [n for n in read(other).nodes if n.step == "build_graph"])
    encoder = DualEncoder.from_backbone(str(other), query_length=9, passage_length=9, share_encoders=True)
    with pytest.raises(UserError, match="this one pools by cls"):
        encode_late(
            encoder.passage_encoder,
            write_data(tmp_path / "data", False),
            0,
            lambda *shape: np.empty(shape),
            partial(Progress, "late"),
        )
