"""Windows of passages that are longer than an encoder reads. A passage's score is that of its best window."""

from collections.abc import Iterator

import numpy as np

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings.shared import shared_tokens


def later_windows(
    encoder: TextEncoder, passages: PassageTable, overlap: int, share: slice = slice(None)
) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yields, for a batch of passages at a time, the rows [w] of windows' passages, ascending, and the windows' texts.

    A window is as long as the encoder reads, and begins `overlap` tokens (`shared_tokens`) before the end of the window
    before. The first window of a passage, which is the passage as the encoder cuts it, is left out. share: consecutive
    passages.
    """
    length = encoder.max_length - (len(encoder.tokenizer.tokenize(encoder.prompt)) if encoder.prompt else 0)
    special = encoder.tokenizer.num_special_tokens_to_add()
    overlap = shared_tokens(overlap, max(1, length - special))
    start, stop, _ = share.indices(len(passages))
    for rows in (np.arange(first, min(first + BATCH, stop)) for first in range(start, stop, BATCH)):
        texts = passages.take(rows).full_texts()
        cut = encoder.tokenizer(
            texts, truncation=True, max_length=length, stride=overlap, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        owner = np.asarray(cut["overflow_to_sample_mapping"])
        later = np.flatnonzero(np.diff(owner, prepend=-1) == 0)
        spans = ((row, [span for span in cut["offset_mapping"][row] if span[1] > span[0]]) for row in later.tolist())
        # Some tokenizers make tokens of blanks, without a span: a window of many blanks is none.
        windows = {row: texts[owner[row]][its[0][0] : its[-1][1]] for row, its in spans if its}
        yield rows[owner[list(windows)]].astype(np.int32), [*windows.values()]
