"""Queries written for passages by a query generator, and what it reads and learns to write."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.inference.encoding import budget_batches, inference_dtype
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.query_generator import IGNORED, QueryGenerator
from gnn_encoder.tracking.progress import Progress


def passage_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """What the encoder reads of passages."""
    return Tokens.of(generator.tokenizer, texts, generator.passage_length)


def query_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """What the decoder is to write: the query and its end.

    A first token that is the decoder's own start is left out: the model is shown that one anyway.
    """
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
    """A query for each of n tokenized passages: the likeliest next token, or beam search.

    Deterministic; passages of like length go together, and a beam counts as a passage in the budget.
    """
    where = device()
    was_training = generator.training
    generator.to(device=where, dtype=inference_dtype(precision)).eval()
    texts = [""] * len(passages)
    with torch.inference_mode():
        for rows in budget_batches(passages.lengths, max(1, tokens_per_batch // beams)):
            ids, mask = passages.padded(rows, generator.tokenizer.pad_token_id)
            written = generator.model.generate(
                input_ids=torch.from_numpy(ids).to(where),
                attention_mask=torch.from_numpy(mask).to(where),
                max_length=generator.query_length,
                num_beams=beams,
                do_sample=False,
            )
            for row, text in zip(
                rows, generator.tokenizer.batch_decode(written, skip_special_tokens=True), strict=True
            ):
                texts[row] = " ".join(text.split())
            if progress:
                progress.advance(len(rows))
    generator.float().train(was_training)
    return texts
