"""Answers of a language model, their estimate, and the journal that keeps each, so that it is paid once."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.settings.language_model import Asking

JOURNAL = "answers.jsonl"
CHARACTERS = 8
"""An answer is cut to this many characters per token that it may have."""
BYTES_OF_TOKEN = 4
"""For estimates: about right for English."""


@dataclass(frozen=True)
class Answer:
    """The answer to the prompt with the number `index`; without an answer, `text` is None and `failure` one line."""

    index: int
    text: str | None
    failure: str = ""
    is_cut: bool = False
    """It was longer: its last line may be half a line."""
    tokens_in: int = 0
    tokens_out: int = 0
    is_kept: bool = False
    """It is an earlier attempt's, and was not asked for again."""


@dataclass(frozen=True)
class Estimate:
    """What answers to some prompts may take."""

    calls: int
    kept: int
    """Prompts that an earlier attempt has the answers of."""
    tokens_in: int
    tokens_out: int
    """At most."""
    cost: float | None
    """At most; None without prices."""

    def __str__(self) -> str:
        kept = f" ({self.kept:,} more answers are kept from an earlier attempt)" if self.kept else ""
        cost = f", at most {self.cost:,.2f} at the given price" if self.cost is not None else ""
        tokens = f"about {self.tokens_in:,} tokens in, at most {self.tokens_out:,} out"
        return f"{self.calls:,} calls{kept}, {tokens}{cost}"


class Journal:
    """The answers of a model, one a line in a file that only grows; a line that a killed process has cut is skipped.

    asked_as   what an answer depends on besides its prompt
    """

    def __init__(self, folder: Path | None, asked_as: Mapping[str, Any]) -> None:
        self._file, self._asked_as = folder / JOURNAL if folder else None, dict(asked_as)
        self._answers: dict[str, dict[str, Any]] = {}
        if not self._file:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file.exists():
            with self._file.open("rb") as lines:
                for line in lines:
                    with suppress(ValueError, KeyError, TypeError):
                        entry = json.loads(line)
                        self._answers[entry.pop("key")] = entry

    @property
    def keeps(self) -> bool:
        """Whether another attempt will have the answers."""
        return self._file is not None

    def key(self, prompt: str) -> str:
        """What an answer to the prompt is found by."""
        return digest_of({**self._asked_as, "prompt": prompt})[:32]

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def kept(self, key: str, indices: Sequence[int]) -> Iterator[Answer]:
        """Yields the answer that was added, or that an earlier attempt has added, to equal prompts."""
        for index in indices:
            yield Answer(index, **self._answers[key], is_kept=True)

    def add(self, key: str, answer: Answer) -> None:
        """Keeps an answer."""
        names = ("text", "is_cut", "tokens_in", "tokens_out")
        entry = {name: value for name, value in asdict(answer).items() if name in names}
        self._answers[key] = entry
        if not self._file:
            return
        with self._file.open("ab+") as file:
            cut = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(b"\n" * bool(cut) + json.dumps({"key": key, **entry}).encode() + b"\n")

    def indices(self, prompts: Sequence[str]) -> dict[str, list[int]]:
        """The numbers of equal prompts, by their key."""
        indices: dict[str, list[int]] = defaultdict(list)
        for index, prompt in enumerate(prompts):
            indices[self.key(prompt)].append(index)
        return indices

    def estimate(self, prompts: Sequence[str], settings: Asking) -> Estimate:
        """What the answers that are not kept may take."""
        distinct = {self.key(prompt): prompt for prompt in prompts}
        new = [prompt for key, prompt in distinct.items() if key not in self._answers]
        tokens_in = sum(tokens_about(prompt) for prompt in new)
        tokens_out = len(new) * settings.answer_tokens
        cost = (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6
        is_priced = settings.price_in or settings.price_out
        return Estimate(len(new), len(distinct) - len(new), tokens_in, tokens_out, cost if is_priced else None)


def bounded(text: str, tokens: int) -> tuple[str, bool]:
    """An answer without what a model thinks before it, and whether it was cut; of an endless thought, nothing."""
    text = text.encode("utf-8", "replace").decode()  # JSON may have half a pair of surrogates, which no file can
    spoken, longest = text.rpartition("</think>")[2].strip(), CHARACTERS * tokens
    if spoken.startswith("<think>"):
        return "", True
    return spoken[:longest], len(spoken) > longest


def tokens_about(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text.encode()) // BYTES_OF_TOKEN)
