"""Generates a query for each passage; makes the tokens that a query generator reads and learns to write."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.inference.encoding import budget_batches, inference_copy
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.query_generator import IGNORED, QueryGenerator
from gnn_encoder.tracking.progress import Progress


def passage_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """Tokens of passages, as the generator's encoder reads passages."""
    return Tokens.of(generator.tokenizer, texts, generator.passage_length)


def query_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """Tokens that the decoder learns to write: the query and the end token, without the decoder's start token."""
    if not texts:
        return Tokens.flatten([])
    ids = generator.tokenizer(text_target=list(texts), truncation=True, max_length=generator.query_length)["input_ids"]
    start = generator.model.config.decoder_start_token_id
    return Tokens.flatten([line[1:] if line[:1] == [start] else line for line in ids])


def pair_batch(
    generator: QueryGenerator, passages: Tokens, queries: Tokens, rows: np.ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """Passage ids and mask [b, l], and labels [b, t] with `IGNORED` as padding, of some pairs."""
    ids, mask = passages.padded(rows, generator.tokenizer.pad_token_id)
    labels, real = queries.padded(rows, generator.tokenizer.pad_token_id)
    labels[real == 0] = IGNORED
    where = device()
    return torch.from_numpy(ids).to(where), torch.from_numpy(mask).to(where), torch.from_numpy(labels).to(where)


def generate(
    generator: QueryGenerator,
    passages: Tokens,
    *,
    beams: int = 1,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> list[str]:
    """Generates a query for each of n tokenized passages, by greedy decoding or beam search; deterministic.

    Passages of about equal length are read together; each beam counts as a passage in the token budget.
    """
    texts, where = [""] * len(passages), device()
    with inference_copy(generator, precision) as ready:
        for rows in budget_batches(passages.lengths, max(1, tokens_per_batch // beams)):
            ids, mask = passages.padded(rows, generator.tokenizer.pad_token_id)
            written = ready.model.generate(
                input_ids=torch.from_numpy(ids).to(where),
                attention_mask=torch.from_numpy(mask).to(where),
                max_length=generator.query_length,
                num_beams=beams,
                do_sample=False,
            )
            decoded = generator.tokenizer.batch_decode(written, skip_special_tokens=True)
            for row, text in zip(rows, decoded, strict=True):
                texts[row] = " ".join(text.split())
            if progress:
                progress.advance(len(rows))
    return texts
