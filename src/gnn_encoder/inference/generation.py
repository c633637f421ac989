"""Generates a query for each passage, and computes log P(query | passage); makes what a query generator reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import ReadOptions, budget_batches, inference_copy, read_rows
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.query_generator import IGNORED, QueryGenerator
from gnn_encoder.tracking.progress import Progress


def passage_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """Tokens of passages, as the generator reads passages, without the separator."""
    return Tokens.of(generator.tokenizer, texts, generator.passage_length)


def query_ids(generator: QueryGenerator, texts: Sequence[str]) -> Tokens:
    """Tokens that the generator learns to write: the query and the end token, without a start token.

    A causal model's query that is cut has no end token, because the model is not to end in the middle of a query.
    """
    if not texts:
        return Tokens.flatten([])
    if generator.causal:  # most vocabularies have a word with the space before it; an answer in a chat has no space
        options = {"add_special_tokens": False, "truncation": True, "max_length": generator.query_length}
        space = "" if generator.instruction else " "
        lines = generator.tokenizer([space + text for text in texts], **options)["input_ids"]
        return Tokens.flatten([[*line, generator.tokenizer.eos_token_id][: generator.query_length] for line in lines])
    ids = generator.tokenizer(text_target=list(texts), truncation=True, max_length=generator.query_length)["input_ids"]
    start = generator.model.config.decoder_start_token_id
    return Tokens.flatten([line[1:] if line[:1] == [start] else line for line in ids])


def prompts(generator: QueryGenerator, passages: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask int64 [b, l] of what precedes a query: the passage, and a causal model's separator.

    A causal model's are padded on the left, so that the query continues each of them in the same column. With a chat
    template the padding is before the passage, and a start token before the passage is masked.
    """
    ids, mask = passages.padded(rows, generator.pad, left=generator.causal)
    if generator.opening and (start := generator.tokenizer.bos_token_id) is not None:
        mask &= ~((ids == start) & (mask.cumsum(1) == 1))
    begins, ends = (
        np.tile(np.array(part, dtype=np.int64), (len(rows), 1)) for part in (generator.opening, generator.prompt)
    )
    return np.hstack([begins, ids, ends]), np.hstack([np.ones_like(begins), mask, np.ones_like(ends)])


def pair_arrays(
    generator: QueryGenerator, passages: Tokens, queries: Tokens, passage: np.ndarray, query: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and mask [b, l] as `prompts`, and labels [b, t] with `IGNORED` as padding, of pairs of rows; int64."""
    labels, real = queries.padded(query, generator.pad)
    return *prompts(generator, passages, passage), np.where(real, labels, IGNORED)


def pair_batch(generator: QueryGenerator, passages: Tokens, queries: Tokens, rows: np.ndarray) -> list[Tensor]:
    """Arrays of the pairs (passages[i], queries[i]), i in `rows`, for the generator's `forward`."""
    arrays = pair_arrays(generator, passages, queries, rows, rows)
    return [torch.from_numpy(array).to(device()) for array in arrays]


def log_likelihoods(
    generator: QueryGenerator, data: Dataset, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]
) -> np.ndarray:
    """log P(query | passage) in nats, fp32 [r], of the pairs of dataset rows (query[i], passage[i]).

    Σ_t log P(tok_t of q | tok_<t, passage), SS-BERT's s_query (its passage evaluation). The sum includes the end token,
    which a causal model's cut query lacks.
    Queries and passages are cut to the lengths of the training.
    """
    queries, query_at = np.unique(query, return_inverse=True)
    distinct, passage_at = np.unique(passage, return_inverse=True)
    query_tokens = query_ids(generator, data.query_texts(queries))
    passage_tokens, position = tokens_at(generator.tokenizer, data.passages, distinct, generator.passage_length)
    passage_at = position[passage_at]
    out = np.empty(len(query), dtype=np.float32)

    def padded(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return pair_arrays(generator, passage_tokens, query_tokens, passage_at[rows], query_at[rows])

    def store(rows: np.ndarray, loss: np.ndarray) -> None:
        out[rows] = -loss

    lengths = passage_tokens.lengths[passage_at] + generator.added + query_tokens.lengths[query_at]
    read_rows(generator, lengths, padded, store, **options)
    return out


def generation_batches(
    generator: QueryGenerator, passages: Tokens, beams: int = 1, tokens_per_batch: int = 4096
) -> list[np.ndarray]:
    """Returns the batches of `generate`, each the numbers of its passages.

    The last bits of a passage's logits depend on the batch. In bf16 that changed 11 of 150 queries (MiniLM, batches of
    50 passages and of 64), so tasks that share the work divide these batches.
    """
    return list(budget_batches(passages.lengths + generator.added, max(1, tokens_per_batch // beams)))


def generate(
    generator: QueryGenerator,
    passages: Tokens,
    *,
    batches: Sequence[np.ndarray] | None = None,
    beams: int = 1,
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
    **options: Any,
) -> list[str]:
    """Generates a query in one line for each of n tokenized passages; see `generate_batches` for the other options.

    `batches`: the batches of `generation_batches` to generate, by default all; the other texts are empty.
    """
    texts = [""] * len(passages)
    batches = generation_batches(generator, passages, beams, tokens_per_batch) if batches is None else batches
    for part, written, _ in generate_batches(generator, passages, batches, beams=beams, **options):
        for row, text in zip(part, written, strict=True):
            texts[row] = " ".join(text.split())
        if progress:
            progress.advance(len(part))
    return texts


def generate_batches(
    generator: QueryGenerator,
    passages: Tokens,
    batches: Iterable[np.ndarray],
    *,
    rows: np.ndarray | None = None,
    beams: int = 1,
    top_k: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
    precision: str = "auto",
) -> Iterator[tuple[np.ndarray, list[str], np.ndarray]]:
    """Yields each batch, a text for each of its passages, and the tokens of the texts int64 [b].

    By greedy decoding, beam search, or sampling. Passages of about equal length are read together; each beam counts as
    a passage in the token budget. A `top_k` of 1 or more samples each token from the `top_k` likeliest. The draws
    depend on the seed and the passage's row alone, in `rows` [n] (by default 0 to n - 1).
    """
    rows = np.arange(len(passages)) if rows is None else rows
    where = device()
    limits = {"max_length": generator.query_length}
    if generator.causal:
        limits = {"max_new_tokens": generator.query_length, "eos_token_id": generator.tokenizer.eos_token_id}
    with inference_copy(generator, precision) as ready:
        for part in batches:
            ids, mask = prompts(generator, passages, part)
            written = ready.model.generate(
                input_ids=torch.from_numpy(ids).to(where),
                attention_mask=torch.from_numpy(mask).to(where),
                num_beams=beams,
                do_sample=False,
                logits_processor=[sampled(rows[part], top_k, temperature, seed)] if top_k else None,
                pad_token_id=generator.pad,
                **limits,
            )[:, ids.shape[1] if generator.causal else 0 :]
            # The end token may be the padding: then it is not counted.
            counts = (written != generator.pad).sum(1).cpu().numpy()
            with torch.inference_mode(False):  # the caller's code between two batches is not in this mode
                yield part, generator.tokenizer.batch_decode(written, skip_special_tokens=True), counts


def sampled(rows: np.ndarray, top_k: int, temperature: float, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a logits processor with which greedy decoding samples from the `top_k` likeliest tokens.

    The largest of logit / temperature + Gumbel noise is a draw from the softmax (the Gumbel-max trick). Each row draws
    from its own generator, so that the other rows of a batch do not change its text, as with torch's one generator.
    """
    generators = [np.random.default_rng((seed, row)) for row in rows.tolist()]

    def processor(written: Tensor, scores: Tensor) -> Tensor:
        best = scores.float().topk(min(top_k, scores.shape[1]))
        noise = np.stack([generator.gumbel(size=best.values.shape[1]) for generator in generators])
        drawn = (best.values / temperature + torch.from_numpy(noise).to(best.values)).argmax(1, keepdim=True)
        return torch.full_like(scores, -torch.inf).scatter(1, best.indices.gather(1, drawn), 0.0)

    return processor
