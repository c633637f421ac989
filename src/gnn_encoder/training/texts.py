"""Where masked training takes vectors from: encoders that are trained with the GNN, or stored vectors."""

from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import encode_tokens
from gnn_encoder.inference.tokens import Tokens, passage_tokens
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.models.gnn import GNN
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import parameter_groups


class Texts(Protocol):
    """Vectors of a dataset's queries and passages, by row."""

    unit_length: bool

    def queries(self, rows: np.ndarray) -> Tensor:
        """h_q [b, d] with gradient."""
        ...

    def passages(self, rows: np.ndarray) -> Tensor:
        """h_p [b, d] with gradient."""
        ...

    def query_vectors(self, rows: np.ndarray) -> np.ndarray:
        """h_q fp32 [b, d] without."""
        ...

    def passage_vectors(self, rows: np.ndarray) -> np.ndarray:
        """h_p fp32 [b, d] without."""
        ...

    def parameter_groups(self, settings: TrainGnn) -> list[dict[str, Any]]:
        """What is trained besides the GNN, as AdamW takes it."""
        ...


class LiveTexts:
    """Both encoders over tokens: the paper's joint training."""

    def __init__(self, encoders: DualEncoder, dataset: Dataset, settings: TrainGnn) -> None:
        self.encoders, self._dataset, self._precision = encoders, dataset, settings.precision
        asking, answering = encoders.query_encoder, encoders.passage_encoder
        every = dataset.query_texts(np.arange(len(dataset.queries)))
        self.query_tokens = Tokens.of(asking.tokenizer, every, asking.max_length)
        self.passage_tokens = passage_tokens(answering.tokenizer, dataset.passages, answering.max_length)
        self._embed = partial(embed, cached=settings.gradient_cache)
        self.unit_length = answering.normalize

    def queries(self, rows: np.ndarray) -> Tensor:
        """See `Texts`."""
        return self._embed(self.encoders.query_encoder, self.query_tokens, rows)

    def passages(self, rows: np.ndarray) -> Tensor:
        """See `Texts`."""
        return self._embed(self.encoders.passage_encoder, self.passage_tokens, rows)

    def query_vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        return self._encoded(self.encoders.query_encoder, self.query_tokens.take(rows))

    def passage_vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        return self._encoded(self.encoders.passage_encoder, self.passage_tokens.take(rows))

    def parameter_groups(self, settings: TrainGnn) -> list[dict[str, Any]]:
        """See `Texts`."""
        return parameter_groups(self.encoders, settings.learning_rate, settings.weight_decay)

    def _encoded(self, encoder: TextEncoder, tokens: Tokens) -> np.ndarray:
        vectors = np.empty((len(tokens), encoder.width), dtype=np.float32)
        encode_tokens(encoder, tokens, vectors, precision=self._precision)
        return vectors


class FrozenTexts(nn.Module):
    """Stored vectors, and a linear map of the queries that is trained with the GNN and starts as the identity.

    A deviation from the paper, for exploring: no text is encoded, so a variant trains in a minute.

    Args:
        queries: [q, d], of all the dataset's queries. passages: [m, d]. Both may be memory-mapped.
    """

    def __init__(self, queries: np.ndarray, passages: np.ndarray, *, unit_length: bool, rate: float) -> None:
        super().__init__()
        self.stored_queries, self.stored_passages = queries, passages
        self.unit_length, self.rate = unit_length, rate
        width = passages.shape[1]
        self.query_map = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.query_map.weight)

    def queries(self, rows: np.ndarray) -> Tensor:
        """See `Texts`."""
        # fp32 under bf16 autocast too, as the encoders' vectors are.
        mapped: Tensor = self.query_map(self._stored(self.stored_queries, rows)).float()
        return nn.functional.normalize(mapped, dim=-1) if self.unit_length else mapped

    def passages(self, rows: np.ndarray) -> Tensor:
        """See `Texts`; nothing here is trained."""
        return self._stored(self.stored_passages, rows)

    def query_vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        with torch.inference_mode():
            found: np.ndarray = self.queries(rows).cpu().numpy()
        return found

    def passage_vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        return np.asarray(self.stored_passages[rows], dtype=np.float32)

    def parameter_groups(self, settings: TrainGnn) -> list[dict[str, Any]]:
        """See `Texts`."""
        return parameter_groups(self, self.rate, settings.weight_decay)

    def _stored(self, vectors: np.ndarray, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(vectors[rows], dtype=np.float32)).to(self.query_map.weight.device)


class FrozenGnnEncoder(nn.Module):
    """A GNN over stored vectors: what `MaskedGraphTraining` trains where no encoder is."""

    def __init__(self, texts: FrozenTexts, gnn: GNN) -> None:
        super().__init__()
        self.texts, self.gnn = texts, gnn
