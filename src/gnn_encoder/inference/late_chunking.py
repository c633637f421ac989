"""Late chunking: passages of a document are read in one pass, and each window is the mean of its tokens' vectors.

So a window's vector knows what stands around it, such as whom a pronoun means (Günther et al., "Late Chunking:
Contextual Chunk Embeddings Using Long-Context Embedding Models", 2024, arXiv 2409.04701). A pass has consecutive
windows of one document, in data without documents of one passage, as many as the model has positions for. Passes share
no tokens but those of two windows that overlap. The first window of a pass has the tokens before the text (`[CLS]`, the
prompt), too, and the last one those after it, so a passage that is alone in its pass has its usual vector.
"""

from collections.abc import Callable, Iterator
from typing import Unpack

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import ReadOptions, budget_batches, inference_copy
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import readable_tokens
from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.settings.shared import shared_tokens
from gnn_encoder.tracking.progress import NewProgress, Progress

LONGEST = 8_192
"""Most tokens of a pass, for models with more positions."""
Span = tuple[int, int, int]
"""A window's row among all windows, and where its tokens begin and end in the pass."""


def encode_late(
    encoder: TextEncoder,
    data: Dataset,
    overlap: int,
    create: Callable[[int, int], np.ndarray],
    stage: NewProgress,
    share: slice = slice(None),
    **options: Unpack[ReadOptions],
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes all windows of passages, which are those of `later_windows` with the first ones.

    Args:
        create: makes the array [v, d] that is filled. stage: starts a stage of the step, which counts windows.
        share: consecutive passages, by default all; a document that it divides is read in parts.

    Returns:
        The vectors [v, d] in the order of passages and windows, and the place int32 [v] of each one's passage among
        those of `share`.

    Raises:
        UserError: the encoder's vectors are not the mean of tokens' vectors.
    """
    if encoder.pooling != "mean":
        pooling = encoder.pooling or "modules of its own"
        raise UserError(f"long_passages = late needs an encoder that pools by mean, and this one pools by {pooling}")
    with inference_copy(encoder, options.get("precision", "auto")) as model:
        late = _Late(model, overlap)
        counts = np.empty(len(range(*share.indices(len(data.passages)))), np.int64)
        blocks = list(_blocks(data, share))
        for rows, _ in blocks:
            counts[rows - (share.start or 0)] = [len(late.windows(len(ids))) for ids in late.ids(data, rows)]
        of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        vectors, starts = create(len(of), encoder.width), np.cumsum(counts) - counts
        counted = stage("encoding", len(of), "windows")
        for rows, documents in blocks:
            passes = list(late.passes(late.ids(data, rows), starts[rows - (share.start or 0)], documents))
            late.read(passes, vectors, counted, options.get("tokens_per_batch", 4096))
    return vectors, of


def _blocks(data: Dataset, share: slice) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields passage rows [b] in reading order, of whole documents, `BATCH` or more at a time, and their documents."""
    document = rows = np.arange(*share.indices(len(data.passages)))
    if data.structure:
        document, place = data.structure.document[rows], data.structure.place[rows]
        order = np.lexsort((place, document))
        rows, document = rows[order], document[order]
    ends = np.append(np.flatnonzero(np.diff(document)) + 1, len(rows))
    start = 0
    while start < len(rows):
        end = int(ends[min(int(np.searchsorted(ends, start + BATCH)), len(ends) - 1)])
        yield rows[start:end], document[start:end]
        start = end


class _Late:
    """An encoder that is ready to read passes."""

    def __init__(self, model: TextEncoder, overlap: int) -> None:
        text, prompt = (model.tokenizer(words, add_special_tokens=False)["input_ids"] for words in ("a", model.prompt))
        whole = model.tokenizer("a")["input_ids"]
        prefix = next(start for start in range(len(whole)) if whole[start : start + len(text)] == text)
        self._model, self._before, self._after = model, [*whole[:prefix], *prompt], whole[prefix + len(text) :]
        others = len(self._before) + len(self._after)
        self._size = model.max_length - others
        self._step = self._size - shared_tokens(overlap, self._size)
        self._capacity = readable_tokens(model.backbone, LONGEST) - others

    def ids(self, data: Dataset, rows: np.ndarray) -> list[list[int]]:
        """The tokens of passages, without special ones."""
        texts = data.passages.take(rows).full_texts()
        ids: list[list[int]] = self._model.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def windows(self, tokens: int) -> list[tuple[int, int]]:
        """Where each window of a passage with so many tokens begins and ends."""
        starts = range(0, max(tokens - self._size, 0) + self._step, self._step)
        return [(start, min(start + self._size, tokens)) for start in starts]

    def passes(
        self, ids: list[list[int]], first: np.ndarray, documents: np.ndarray
    ) -> Iterator[tuple[list[int], list[Span]]]:
        """Yields the tokens of each pass, and its windows; `first` [b] is the row of each passage's first window.

        A passage without tokens has a pass of its own.
        """
        tokens, spans, begin, end_of_pass = list[int](), list[Span](), 0, 0
        for number, token_ids in enumerate(ids):
            if number and documents[number] != documents[number - 1]:
                yield self._closed(tokens, spans)
                tokens, spans, begin, end_of_pass = [], [], 0, 0
            passage = end_of_pass
            for window, (start, end) in enumerate(self.windows(len(token_ids))):
                empty = start == end or (spans and spans[-1][1] == spans[-1][2])
                if spans and (passage + end - begin > self._capacity or empty):
                    yield self._closed(tokens, spans)
                    tokens, spans, begin, end_of_pass = [], [], passage + start, passage + start
                tokens += token_ids[end_of_pass - passage : end]
                end_of_pass = passage + end
                spans.append((int(first[number]) + window, passage + start - begin, end_of_pass - begin))
        if spans:
            yield self._closed(tokens, spans)

    def _closed(self, tokens: list[int], spans: list[Span]) -> tuple[list[int], list[Span]]:
        shift = len(self._before)
        spans = [(row, start + shift, end + shift) for row, start, end in spans]
        spans[0] = (spans[0][0], 0, spans[0][2])
        spans[-1] = (*spans[-1][:2], spans[-1][2] + len(self._after))
        return [*self._before, *tokens, *self._after], spans

    def read(
        self, passes: list[tuple[list[int], list[Span]]], out: np.ndarray, progress: Progress, tokens_per_batch: int
    ) -> None:
        """Writes the vectors of all windows of passes to their rows of `out`."""
        tokens = Tokens.flatten([ids for ids, _ in passes])
        pad = self._model.tokenizer.pad_token_id or 0
        for batch in budget_batches(tokens.lengths, tokens_per_batch):
            ids, mask = (torch.from_numpy(array).to(device()) for array in tokens.padded(batch, pad))
            hidden = self._model.backbone(input_ids=ids, attention_mask=mask)[0].float()
            spans = [(number, *span) for number, row in enumerate(batch.tolist()) for span in passes[row][1]]
            means = torch.stack([hidden[number, start:end].mean(0) for number, _, start, end in spans])
            out[[row for _, row, _, _ in spans]] = self._model.finished(means).cpu().numpy()
            progress.advance(len(spans))
