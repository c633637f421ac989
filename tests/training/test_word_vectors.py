"""Word vectors of each source, and the words that they are for."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import load_encoder, load_tokenizer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.training.word_vectors import word_tokenizer, word_vectors


def vectors(data: Dataset, **settings: Any) -> tuple[dict[str, int], np.ndarray]:
    tokenizer, rows = word_vectors(TrainReranker(**settings), data.passages, data.queries.column("text").to_pylist())
    return tokenizer.get_vocab(), rows.numpy()


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    tokenizer = word_tokenizer([["The river's STONE: 3.5, état-major", "the river"], ["der Fluß"]], 100)
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert words == ["[PAD]", "[UNK]", "river", "the", "3", "5", "der", "fluß", "major", "s", "stone", "état"]
    read = tokenizer(["THE  E\u0301TAT of 3.", ""], truncation=True, max_length=3)["input_ids"]  # é as two characters
    assert [tokenizer.convert_ids_to_tokens(row) for row in read] == [["the", "état", "[UNK]"], []]


def test_rare_words_beyond_the_vocabulary_are_one_word() -> None:
    tokenizer = word_tokenizer([["a a a b b c"]], 4)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}


def test_the_backbones_tokens_have_its_input_embeddings(tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    tokenizer, vectors_of = word_vectors(TrainReranker(backbone=str(tiny_backbone)), tiny_dataset.passages, [])
    assert torch.equal(vectors_of, load_encoder(str(tiny_backbone)).get_input_embeddings().weight)
    backbone_tokenizer = load_tokenizer(str(tiny_backbone))
    assert tokenizer("the stone")["input_ids"] == backbone_tokenizer("the stone", add_special_tokens=False)["input_ids"]
    assert backbone_tokenizer("the stone")["input_ids"] != tokenizer("the stone")["input_ids"]  # control: it has [CLS]


@pytest.mark.slow
def test_vectors_trained_on_the_corpus(tiny_dataset: Dataset) -> None:
    pytest.importorskip("gensim")
    settings = {"word_vectors": "trained", "word_width": 16, "word_epochs": 2}
    words, rows = vectors(tiny_dataset, **settings)
    assert rows.shape == (len(words), 16) and rows.dtype == np.float32
    assert {"river", "north", "number", "what"} <= set(words)  # the last two are in queries alone
    again = vectors(tiny_dataset, **settings)
    assert again[0] == words and np.array_equal(again[1], rows)
    assert not np.array_equal(vectors(tiny_dataset, **settings, seed=1)[1], rows)
    # A word that gensim left out has a vector of its own, as long as the others.
    drawn = rows[[words["number"], words["what"]]]
    assert not np.array_equal(*drawn)
    assert 0.5 < np.linalg.norm(drawn, axis=1).mean() / np.linalg.norm(rows[words["river"]]) < 2


GLOVE = {"river": [1.0, 2.0, 3.0], "stone": [-1.0, 0.5, 1e-3], "elsewhere": [9.0, 9.0, 9.0]}


@pytest.mark.parametrize("header", ["", "3 3\n"])
def test_vectors_of_a_text_file(header: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    lines = [f"{word} {' '.join(map(str, numbers))}" for word, numbers in GLOVE.items()]
    path = tmp_path / "glove.txt"
    path.write_text(header + "\n".join([*lines, "at name@host.org 7 7 7"]) + "\n")
    words, rows = vectors(tiny_dataset, word_vectors=str(path))
    assert "elsewhere" not in words and rows.shape == (len(words), 3)
    np.testing.assert_allclose(rows[[words["river"], words["stone"]]], [GLOVE["river"], GLOVE["stone"]])
    others = np.delete(rows, [words["river"], words["stone"]], axis=0)
    assert len(np.unique(others, axis=0)) == len(others)  # a vector each
    assert others.std() == pytest.approx(np.std([GLOVE["river"], GLOVE["stone"]]), rel=0.3)
    assert np.array_equal(vectors(tiny_dataset, word_vectors=str(path))[1], rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("elsewhere 1 2\n", "no vector of any word"),
        ("river 1 2\nstone 1\n", "line 2 has 1 numbers, and the first line 2"),
        ("river 1 2\nstone 1 x\n", "could not convert"),
    ],
)
def test_a_file_that_is_no_text_of_vectors_is_one_line(
    text: str | None, words: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "glove.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        vectors(tiny_dataset, word_vectors=str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_without_gensim_it_says_what_to_install(tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("gensim"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'gnn-encoder\[word-vectors\]'"):
        vectors(tiny_dataset, word_vectors="trained")
