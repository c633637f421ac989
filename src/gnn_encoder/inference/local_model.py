"""A language model of this machine."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.inference.answers import Answer, Estimate, Journal, bounded
from gnn_encoder.inference.generation import generate_batches, generation_batches, passage_ids
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import load_pretrained
from gnn_encoder.models.backbone_files import PACKAGED
from gnn_encoder.models.query_generator import LAYOUT, QueryGenerator
from gnn_encoder.settings.language_model import Asking

SAMPLED = 50
"""Likeliest tokens from which a model of this machine samples, as transformers does by default."""
PAIR = "encoder-decoder"
"""transformers' type of two encoders' pair."""


class LocalModel:
    """A model in this process; `is_trained_writer`: it was trained to write queries, and its prompts are passages."""

    def __init__(self, name: str, settings: Asking, folder: Path | None, digest: str) -> None:
        from transformers import AutoConfig

        is_folder = name not in PACKAGED and Path(name).is_dir()
        self.name = Path(name).name if is_folder else name
        self.is_trained_writer = is_folder and (Path(name) / LAYOUT).is_file()
        if self.is_trained_writer:
            self._model = QueryGenerator.load(name)
        else:
            self._model = QueryGenerator.from_pretrained(name, settings.prompt_tokens, settings.answer_tokens)
            is_pair = self._model.model.config.model_type == PAIR
            if is_pair and load_pretrained(AutoConfig, name).model_type != PAIR:  # with weights that begin at random
                raise UserError(f"{self.name!r} is an encoder, and writes nothing: name a causal or a seq2seq model")
        self._settings = settings
        asked_as = {"digest": digest, **settings.model_dump(include={"prompt_tokens", "precision", "answer_batch"})}
        self._journal = Journal(folder, {**asked_as, **settings.decoding})

    def estimate(self, prompts: Sequence[str]) -> Estimate:
        """See `LanguageModel`."""
        return self._journal.estimate(prompts, self._settings)

    def answers(self, prompts: Sequence[str]) -> Iterator[Answer]:
        """See `LanguageModel`."""
        wanted = self._journal.indices(prompts)
        tokens = self._tokens([prompts[indices[0]] for indices in wanted.values()])
        keys, longest = list(wanted), self._model.passage_length
        fits = np.flatnonzero(tokens.lengths <= longest)
        for row in np.flatnonzero(tokens.lengths > longest).tolist():
            failure = f"a prompt has {tokens.lengths[row]:,} tokens, and {self.name} reads {longest:,}"
            yield from (Answer(index, None, failure) for index in wanted[keys[row]])
        # The batches are those of all prompts, so that another attempt has the same.
        every = generation_batches(self._model, tokens.take(fits), 1, self._settings.answer_batch)
        batches = [fits[batch] for batch in every]
        new = [batch for batch in batches if any(keys[row] not in self._journal for row in batch)]
        for row in np.setdiff1d(fits, np.concatenate([*new, np.zeros(0, np.int64)])).tolist():
            yield from self._journal.kept(keys[row], wanted[keys[row]])
        draws = np.array([int(key[:15], 16) for key in keys], np.int64)
        settings = self._settings
        written = generate_batches(
            self._model, tokens, new, rows=draws, top_k=SAMPLED if settings.temperature else 0,
            temperature=settings.temperature or 1.0, seed=settings.seed, precision=settings.precision,
        )  # fmt: skip
        for batch, texts, counts in written:
            for row, text, count in zip(batch.tolist(), texts, counts.tolist(), strict=True):
                short, is_cut = bounded(text, self._settings.answer_tokens)
                is_cut = is_cut or (count >= self._model.query_length and not self.is_trained_writer)
                answer = Answer(0, short, "", is_cut, int(tokens.lengths[row]), count)
                self._journal.add(keys[row], answer)
                yield from (replace(answer, index=index) for index in wanted[keys[row]])

    def _tokens(self, prompts: Sequence[str]) -> Tokens:
        """Token ids of prompts in the model's chat template, if it has one. No text can write a special token."""
        tokenizer = self._model.tokenizer
        special = re.compile(
            "|".join(map(re.escape, sorted(tokenizer.get_added_vocab(), key=len, reverse=True))) or "$^"
        )
        texts = [special.sub(" ", prompt) for prompt in prompts]
        if self.is_trained_writer:
            return passage_ids(self._model, texts)
        if not tokenizer.chat_template:
            return Tokens.flatten(tokenizer(texts)["input_ids"] if texts else [])
        chats = [[{"role": "user", "content": text}] for text in texts]
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        try:
            filled = [tokenizer.apply_chat_template(chat, **options) for chat in chats]
        except Exception as error:  # as many errors as a template can raise
            raise UserError(f"{self.name}'s chat template: {one_line(error)[:160]}") from None
        return Tokens.flatten(tokenizer(filled, add_special_tokens=False)["input_ids"] if filled else [])
