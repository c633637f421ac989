"""Re-rankers on word vectors, BERT-DMN's baselines: QA-LSTM, K-NRM and a Dynamic Memory Network (BERT-DMN 5).

All are computed in fp32, also under bf16 autocast: they cost little, and K-NRM's first kernel tells equal words from
similar ones, which cosines in bf16 do not.
"""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, dropout, normalize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.models.dynamic_memory import DynamicMemory, MemoryConfig, sentence_means

LAYOUT, WEIGHTS = "word_model.json", "word_model.safetensors"


class WordModel(nn.Module, ABC):
    """A network over word vectors; a subclass scores the pairs.

    Args:
        words: word vectors [v, e], a parameter of the network.
        tokenizer: of the words, without special tokens.
        max_length: words of a text; later words are not read.
        options: further arguments of the subclass.
    """

    reads_sentences = False
    """Whether the words of a passage have the numbers of their sentences; without sentences each number is 1."""

    def __init__(self, words: Tensor, tokenizer: Any, max_length: int, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words, freeze=False)
        self.tokenizer, self.max_length, self.options = tokenizer, max_length, options

    def forward(self, query: Tensor, query_mask: Tensor, passage: Tensor, sentence: Tensor) -> Tensor:
        """Scores fp32 [b] of pairs; a text without words is read as one word of padding.

        Args:
            query, passage: numbers of words, int64 [b, l] and [b, k].
            query_mask: int64 [b, l]; 1 at words, 0 at padding.
            sentence: int64 [b, k]; the number of each word's sentence, from 1; 0 at padding.
        """
        with torch.autocast(query.device.type, enabled=False):
            query_mask, sentence = query_mask.clone(), sentence.clone()
            query_mask[:, 0] = sentence[:, 0] = 1
            return self.score(self.words(query), query_mask, self.words(passage), sentence)

    @abstractmethod
    def score(self, query: Tensor, query_mask: Tensor, passage: Tensor, sentence: Tensor) -> Tensor:
        """Scores [b] of word vectors `query` [b, l, e] and `passage` [b, k, e]; each text has a word."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer with the vocabulary, the weights and the layout."""
        self.tokenizer.save_pretrained(folder)
        save_file(self.state_dict(), folder / WEIGHTS)
        layout = {"max_length": self.max_length, "options": self.options}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote."""
        folder = Path(folder)
        layout, weights = json.loads((folder / LAYOUT).read_text("utf-8")), load_file(folder / WEIGHTS)
        tokenizer = load_tokenizer(str(folder))
        model = cls(weights["words.weight"], tokenizer, layout["max_length"], **layout["options"])
        model.load_state_dict(weights)
        return model


class QaLstm(WordModel):
    """QA-LSTM with attention (Tan et al. 2016, 3.3): one LSTM reads both texts; the score is a cosine.

    Args:
        width: hidden units of each direction.
        pooling: how the states of a text become one vector.
        rate: dropout of the two vectors that are compared.
    """

    def __init__(
        self, words: Tensor, tokenizer: Any, max_length: int,
        *, width: int = 256, pooling: Literal["max", "mean"] = "max", rate: float = 0.5,
    ) -> None:  # fmt: skip
        super().__init__(words, tokenizer, max_length, width=width, pooling=pooling, rate=rate)
        self.lstm = nn.LSTM(words.shape[1], width, batch_first=True, bidirectional=True)
        self.of_state = nn.Linear(2 * width, 2 * width, bias=False)
        self.of_query = nn.Linear(2 * width, 2 * width, bias=False)
        self.logit = nn.Linear(2 * width, 1, bias=False)
        self.pooling, self.rate = pooling, rate

    def score(self, query: Tensor, query_mask: Tensor, passage: Tensor, sentence: Tensor) -> Tensor:
        """Scores [b] in [-1, 1]; see `WordModel`. A passage of several pairs in a row is read once for them."""
        question = self._pooled(self._states(query, query_mask), query_mask)
        fresh = (passage[1:] != passage[:-1]).flatten(1).any(dim=1) | (sentence[1:] != sentence[:-1]).any(dim=1)
        fresh = torch.cat([fresh.new_ones(1), fresh])
        states, read = self._states(passage[fresh], sentence[fresh]), fresh.cumsum(0) - 1
        keys = self.of_state(states).index_select(0, read) + self.of_query(question)[:, None]
        weights = self.logit(keys.tanh()).squeeze(-1).masked_fill(sentence == 0, -torch.inf).softmax(dim=-1)
        answer = self._pooled(states.index_select(0, read) * weights[..., None], sentence)
        question, answer = (dropout(vector, self.rate, self.training) for vector in (question, answer))
        return cosine_similarity(question, answer)

    def _states(self, words: Tensor, real: Tensor) -> Tensor:
        lengths = (real > 0).sum(dim=1).cpu()
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])[0]

    def _pooled(self, states: Tensor, real: Tensor) -> Tensor:
        padding = (real == 0)[..., None]
        if self.pooling == "max":
            return states.masked_fill(padding, -torch.inf).amax(dim=1)
        return states.masked_fill(padding, 0.0).sum(dim=1) / (~padding).sum(dim=1)


class Knrm(WordModel):
    """K-NRM (Xiong et al. 2017): a kernel for each degree of similarity counts the pairs of similar words, softly.

    Args:
        kernels: their number. The first one, with μ = 1, counts equal words; the means of the others divide [-1, 1]
            evenly.
        width: σ of the kernels. exact_width: σ of the first one.
        scale: factor of the log counts; 1 in the paper.
    """

    def __init__(
        self, words: Tensor, tokenizer: Any, max_length: int,
        *, kernels: int = 11, width: float = 0.1, exact_width: float = 1e-3, scale: float = 0.01,
    ) -> None:  # fmt: skip
        options = {"kernels": kernels, "width": width, "exact_width": exact_width, "scale": scale}
        super().__init__(words, tokenizer, max_length, **options)
        self.scale = scale
        others = 1 - (2 * torch.arange(kernels - 1) + 1) / (kernels - 1)
        self.means = nn.Buffer(torch.cat([torch.ones(1), others]), persistent=False)
        self.widths = nn.Buffer(torch.tensor([exact_width] + [width] * (kernels - 1)), persistent=False)
        self.answer = nn.Linear(kernels, 1)

    def score(self, query: Tensor, query_mask: Tensor, passage: Tensor, sentence: Tensor) -> Tensor:
        """Scores [b] in [-1, 1]; see `WordModel`."""
        cosines = (normalize(query, dim=-1) @ normalize(passage, dim=-1).transpose(1, 2))[..., None]  # [b, l, k, 1]
        counts = (-((cosines - self.means) ** 2) / (2 * self.widths**2)).exp()  # [b, l, k, kernels]
        counts = counts.masked_fill((sentence == 0)[:, None, :, None], 0.0).sum(dim=2)
        # The logarithm of 0 is bounded.
        features = self.scale * counts.clamp(min=1e-10).log()
        features = features.masked_fill((query_mask == 0)[..., None], 0.0)
        scores: Tensor = self.answer(features.sum(dim=1)).squeeze(-1).tanh()
        return scores


class WordDmn(WordModel):
    """The Dynamic Memory Network on word vectors: BERT-DMN without BERT. A sentence is the mean of its words' vectors.

    Args:
        memory: fields of `MemoryConfig` other than `source`.
    """

    reads_sentences = True

    def __init__(self, words: Tensor, tokenizer: Any, max_length: int, **memory: Any) -> None:
        super().__init__(words, tokenizer, max_length, **memory)
        config = MemoryConfig(words.shape[1], **memory)
        self.memory, self.answer = DynamicMemory(config), nn.Linear(2 * config.width, 1)

    def score(self, query: Tensor, query_mask: Tensor, passage: Tensor, sentence: Tensor) -> Tensor:
        """Scores [b] (logits): W [Q; m] + b; see `WordModel`."""
        facts = torch.cat(self.memory(query, query_mask.sum(dim=1), *sentence_means(passage, sentence)), dim=-1)
        scores: Tensor = self.answer(dropout(facts, self.memory.config.dropout, self.training)).squeeze(-1)
        return scores
