"""Word vectors at the start of a training, and the tokenizer that knows their words (BERT-DMN 5).

A word is a run of letters and digits, in lower case, or a token of the backbone. The vocabulary has the words of the
corpus and of the queries that are trained on; texts are streamed, so that memory grows with the number of distinct
words, not of texts.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.errors import UserError
from gnn_encoder.inference.tokens import Tokens, passage_tokens
from gnn_encoder.models.backbone import load_encoder, load_tokenizer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.storage import local_file

PADDING, OTHER = "[PAD]", "[UNK]"
LONGEST = 10_000
"""Words of a text that gensim reads."""


def word_vectors(settings: TrainReranker, passages: PassageTable, queries: list[str]) -> tuple[Any, Tensor]:
    """A tokenizer without special tokens, and a vector for each of its words, fp32 [v, e].

    `queries`: those of the training; words of the corpus and of these queries are known.

    Raises:
        UserError: gensim or the file with vectors is missing, or the file cannot be read.
    """
    if settings.word_vectors == "backbone":
        return _of_backbone(settings.backbone)
    texts = chain((batch.full_texts() for batch in passages.stream()), [queries])
    tokenizer = word_tokenizer(texts, settings.vocabulary)
    if settings.word_vectors == "trained":
        rows, vectors = _trained(passage_tokens(tokenizer, passages, LONGEST), settings)
    else:
        rows, vectors = _read(local_file(settings.word_vectors), tokenizer.get_vocab())
    drawn = np.random.default_rng(settings.seed).standard_normal((len(tokenizer), vectors.shape[1]), dtype=np.float32)
    drawn *= vectors.std()
    drawn[rows] = vectors
    return tokenizer, torch.from_numpy(drawn)


def word_tokenizer(texts: Iterable[list[str]], size: int) -> Any:
    """A tokenizer for the `size` - 2 most frequent words of the texts; two further entries are padding and other words.

    The words are in order of frequency, equally frequent ones in order of the alphabet.
    """
    words = Tokenizer(models.WordLevel(unk_token=OTHER))
    words.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), behavior="removed", invert=True)
    special = [PADDING, OTHER]
    words.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    return _fast(words, PADDING, OTHER)


def _fast(tokenizer: Any, padding: str, unknown: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=padding, unk_token=unknown)


def _of_backbone(name: str) -> tuple[Any, Tensor]:
    pretrained = load_tokenizer(name)
    pieces = Tokenizer.from_str(pretrained.backend_tokenizer.to_str())
    pieces.post_processor = None  # adds the special tokens
    vectors = load_encoder(name).get_input_embeddings().weight.detach().clone()
    return _fast(pieces, pretrained.pad_token, pretrained.unk_token), vectors


class _Numbers:
    """The words of each text as numbers; gensim reads them once per epoch, a text in memory at a time."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __iter__(self) -> Iterator[list[int]]:
        offsets = self.tokens.offsets
        return (self.tokens.ids[offsets[row] : offsets[row + 1]].tolist() for row in range(len(self.tokens)))


def _trained(tokens: Tokens, settings: TrainReranker) -> tuple[np.ndarray, np.ndarray]:
    """Skip-gram vectors of words that occur 5 times (of all words, if none does): numbers [n], vectors fp32 [n, e].

    One thread trains them, so that the same corpus and seed give the same vectors.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise UserError(
            "word_vectors = trained needs the package gensim: pip install 'gnn-encoder[word-vectors]', or set backbone"
        ) from None
    texts = _Numbers(tokens)
    for fewest in (5, 1):  # gensim's default; of a small corpus all words
        model = Word2Vec(vector_size=settings.word_width, sg=1, seed=settings.seed, workers=1, min_count=fewest)
        model.build_vocab(texts)
        if len(model.wv):
            break
    else:
        raise UserError("word_vectors = trained: the corpus has no word; set backbone")
    model.train(texts, total_examples=model.corpus_count, epochs=settings.word_epochs)
    return np.array(model.wv.index_to_key), model.wv.vectors


def _read(path: Path, vocabulary: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [n] of the vocabulary's words in a text file, GloVe's or word2vec's, and their vectors fp32 [n, e]."""
    rows, vectors, width = [], [], 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                width = width or line.rstrip().count(" ")
                if number == width == 1:
                    width = 0  # word2vec's first line: number of words, width
                    continue
                word, *values = line.rstrip().rsplit(" ", width)  # a few of GloVe's words have spaces
                if word in vocabulary:
                    if len(values) != width:
                        raise ValueError(f"line {number} has {len(values)} numbers, and the first line {width}")
                    rows.append(vocabulary[word])
                    vectors.append(np.array(values, dtype=np.float32))
    except (OSError, ValueError) as error:
        raise UserError(f"word_vectors = {path}: {error}") from None
    if not rows:
        raise UserError(f"word_vectors = {path}: has no vector of any word of the data; is it a GloVe text file?")
    return np.array(rows), np.stack(vectors)
