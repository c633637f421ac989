"""Re-rankers on word vectors, BERT-DMN's baselines: QA-LSTM and K-NRM (BERT-DMN 5)."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, dropout, normalize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class QaLstm(nn.Module):
    """QA-LSTM with attention (Tan et al., 2016, 3.3): one LSTM reads both texts; the score is a cosine.

    Args:
        words: word vectors [v, e]; they are trained.
        width: hidden units of each direction.
        pooling: what makes one vector of a text's states.
        rate: dropout of the two vectors that are compared.
    """

    def __init__(
        self, words: Tensor, width: int = 256, pooling: Literal["max", "mean"] = "max", rate: float = 0.5
    ) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words, freeze=False)
        self.lstm = nn.LSTM(words.shape[1], width, batch_first=True, bidirectional=True)
        self.of_state = nn.Linear(2 * width, 2 * width, bias=False)
        self.of_query = nn.Linear(2 * width, 2 * width, bias=False)
        self.logit = nn.Linear(2 * width, 1, bias=False)
        self.pooling, self.rate = pooling, rate

    def forward(self, query: Tensor, query_length: Tensor, passage: Tensor, passage_length: Tensor) -> Tensor:
        """Scores [b] in [-1, 1] of word numbers query [b, l] and passage [b, k]; the lengths [b] are at least 1."""
        asked = self._pooled(self._states(query, query_length), query_length)
        states = self._states(passage, passage_length)
        attention = self.logit((self.of_state(states) + self.of_query(asked)[:, None]).tanh()).squeeze(-1)
        weights = attention.masked_fill(~_real(states, passage_length), -torch.inf).softmax(dim=-1)
        answer = self._pooled(states * weights[..., None], passage_length)
        asked, answer = (dropout(vector, self.rate, self.training) for vector in (asked, answer))
        return cosine_similarity(asked, answer)

    def _states(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])[0]

    def _pooled(self, states: Tensor, lengths: Tensor) -> Tensor:
        real = _real(states, lengths)[..., None]
        if self.pooling == "max":
            return states.masked_fill(~real, -torch.inf).amax(dim=1)
        return states.masked_fill(~real, 0.0).sum(dim=1) / lengths[:, None]


class Knrm(nn.Module):
    """K-NRM (Xiong et al., 2017): counts word pairs by how similar they are, softly, with a kernel for each similarity.

    Args:
        words: word vectors [v, e]; they are trained.
        means, widths: μ and σ of the kernels; the first is for equal words.
    """

    MEANS = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9)
    WIDTHS = (1e-3, *(0.1,) * 10)

    def __init__(self, words: Tensor, means: tuple[float, ...] = MEANS, widths: tuple[float, ...] = WIDTHS) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words, freeze=False)
        self.means = nn.Buffer(torch.tensor(means))
        self.widths = nn.Buffer(torch.tensor(widths))
        self.score = nn.Linear(len(means), 1)

    def forward(self, query: Tensor, query_length: Tensor, passage: Tensor, passage_length: Tensor) -> Tensor:
        """Scores [b] in [-1, 1] of word numbers query [b, l] and passage [b, k]."""
        asked, answers = (normalize(self.words(words), dim=-1) for words in (query, passage))
        cosines = (asked @ answers.transpose(1, 2))[..., None]  # [b, l, k, 1]
        counts = (-((cosines - self.means) ** 2) / (2 * self.widths**2)).exp()  # [b, l, k, kernels]
        counts = counts.masked_fill(~_real(answers, passage_length)[:, None, :, None], 0.0).sum(dim=2)
        # A word without any similar word has count 0, and its logarithm is bounded as in the authors' program.
        features = counts.clamp(min=1e-10).log().masked_fill(~_real(asked, query_length)[..., None], 0.0).sum(dim=1)
        scores: Tensor = self.score(features).squeeze(-1).tanh()
        return scores


def _real(states: Tensor, lengths: Tensor) -> Tensor:
    """Bool [b, l], False at the padding of states [b, l, d]."""
    return torch.arange(states.shape[1], device=states.device) < lengths[:, None]
