"""A language model that answers prompts: a service in OpenAI's form, or a model of this machine; each answer paid once.

    model = open_language_model("http://localhost:11434/v1#llama3.2", settings, folder)
    for answer in model.answers(prompts):  # in the order in which they come
        ...

Each answer of a service is appended to a journal in `folder` before it is handed out. Another attempt, after whatever
ended this one, takes the answers of the journal and asks the others alone. Answers of this machine are kept in the
same way, by whole batches: the last bits of a text's logits depend on its batch.
"""

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import numpy as np

from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.errors import Unreachable, UserError, one_line
from gnn_encoder.inference.generation import generate_batches, generation_batches, passage_ids
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import PACKAGED, load_pretrained
from gnn_encoder.models.query_generator import LAYOUT, QueryGenerator
from gnn_encoder.models.service import Service
from gnn_encoder.settings.language_model import Asking
from gnn_encoder.settings.shared import is_address

JOURNAL = "answers.jsonl"
REPEATS = 8
"""How often the client repeats a call that failed for a while (429, 5xx, a broken connection), after the time in
Retry-After or ever longer ones: 40 seconds in all."""
IN_A_ROW = 16
"""Failed calls, one after the other, after which no more are tried."""
HOPELESS = (401, 402, 404)
"""Answers of a service that another call will not change: no key, no money, no such model. A 403 may be of one prompt:
OpenRouter's moderation and web application firewalls answer so. Of a key without rights, 16 in a row end the run."""
CHARACTERS = 8
"""An answer is cut to this many characters per token that it may have."""
BYTES_OF_TOKEN = 4
"""For estimates: about right for English."""
SAMPLED = 50
"""Likeliest tokens from which a model of this machine samples, as transformers does by default."""
PAIR = "encoder-decoder"
"""transformers' type of two encoders' pair."""
FALLBACKS: Mapping[str, str] = {"max_tokens": "max_completion_tokens", "temperature": "", "seed": ""}
"""A parameter that a model may refuse → the name that it then has; empty: the model does without."""


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


class LanguageModel(Protocol):
    """Answers prompts."""

    name: str
    """As it may be shown: without a key or a path."""

    def answers(self, prompts: Sequence[str]) -> Iterator[Answer]:
        """Yields one answer to each prompt, in any order; equal prompts are asked once.

        Raises:
            Unreachable: a service does not answer; what it has answered is kept.
        """

    def estimate(self, prompts: Sequence[str]) -> Estimate:
        """Returns what the answers to the prompts may take; nothing is asked."""


def open_language_model(
    name: str, settings: Asking, folder: Path | None = None, digest: str = ""
) -> "ServiceModel | LocalModel":
    """Opens `http://…/v1#MODEL`, or loads `smollm2`, or a folder or Hugging Face name of a causal or seq2seq model.

    Args:
        name: the model.
        settings: how it is asked.
        folder: the journal's; None: answers are not kept.
        digest: of a local model's files; by default it is known by its name.

    Raises:
        UserError: a wrong address or model.
        Unreachable: a service that does not say which model it has.
    """
    if is_address(name):
        return ServiceModel(name, settings, folder)
    return LocalModel(name, settings, folder, digest or name)


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

    def estimate(self, prompts: Sequence[str], settings: Asking) -> Estimate:
        """What the answers that are not kept may take."""
        distinct = {self.key(prompt): prompt for prompt in prompts}
        new = [prompt for key, prompt in distinct.items() if key not in self._answers]
        tokens_in = sum(_tokens(prompt) for prompt in new)
        tokens_out = len(new) * settings.answer_tokens
        cost = (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6
        is_priced = settings.price_in or settings.price_out
        return Estimate(len(new), len(distinct) - len(new), tokens_in, tokens_out, cost if is_priced else None)


class ServiceModel:
    """A service that is asked for one answer a call, several calls at a time."""

    def __init__(self, name: str, settings: Asking, folder: Path | None) -> None:
        self._service, model = Service.named(name)
        self._model, self._settings = model or self._only_model(), settings
        self.name = f"{self._service.address}#{self._model}"
        self._journal = Journal(folder, {"model": self.name, **settings.decoding})
        self._options = {"max_tokens": settings.answer_tokens, **settings.decoding}
        self._options.pop("answer_tokens")

    def estimate(self, prompts: Sequence[str]) -> Estimate:
        """See `LanguageModel`."""
        return self._journal.estimate(prompts, self._settings)

    def answers(self, prompts: Sequence[str]) -> Iterator[Answer]:
        """See `LanguageModel`. The caller takes each answer soon: calls are under way, and their time runs."""
        wanted = _indices(self._journal, prompts)
        new = {key: prompts[indices[0]] for key, indices in wanted.items() if key not in self._journal}
        for key in wanted.keys() - new.keys():
            yield from self._journal.kept(key, wanted[key])
        failed_in_a_row, count, why, stop = 0, 0, "", Event()
        for key, answer, is_hopeless in self._asked(new, stop):
            if answer.text is not None:
                self._journal.add(key, answer)
                failed_in_a_row, count = 0, count + 1
            else:
                failed_in_a_row += 1
            if not stop.is_set() and (is_hopeless or failed_in_a_row == IN_A_ROW):
                why = answer.failure + ("" if is_hopeless else f" ({failed_in_a_row} failed calls in a row)")
                stop.set()  # calls under way may be paid for already: what comes of them is kept
            if not stop.is_set():
                for index in wanted[key]:
                    yield replace(answer, index=index)
        if why:
            kept = "are kept: run again to go on" if self._journal.keeps else "are lost, as no folder keeps them"
            raise Unreachable(f"{why}; {count:,} of {len(new):,} answers came and {kept}")

    def _asked(self, new: Mapping[str, str], stop: Event) -> Iterator[tuple[str, Answer, bool]]:
        """Yields key, answer, and whether other calls cannot succeed, of prompts by their keys, as the answers come.

        After `stop` no further call begins.
        """
        # The loop has a thread of its own, because the caller's may have a loop that runs, as in a notebook.
        loop, thread = asyncio.new_event_loop(), ThreadPoolExecutor(1, "answers")
        tasks: dict[asyncio.Task[tuple[Answer, bool]], str] = {}
        # `_ask` has the limit. After one of its own the client would ask again, and both answers would be paid for.
        waits: dict[str, Any] = {"max_retries": REPEATS, "timeout": None}
        client, todo = self._service.client("AsyncOpenAI", **waits), iter(new.items())
        try:
            while True:
                more = 0 if stop.is_set() else self._settings.calls_at_once - len(tasks)
                for key, prompt in islice(todo, more):
                    tasks[loop.create_task(self._ask(client, prompt))] = key
                if not tasks:
                    break
                first = asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                done, _ = thread.submit(loop.run_until_complete, first).result()
                results = [(tasks.pop(task), *task.result()) for task in done]
                yield from results
        finally:
            for task in tasks:
                loop.call_soon_threadsafe(task.cancel)  # an interrupted wait ends by that
            thread.submit(loop.run_until_complete, _closed(client, list(tasks))).result()
            thread.shutdown()
            loop.close()

    async def _ask(self, client: Any, prompt: str) -> tuple[Answer, bool]:
        openai, messages = import_module("openai"), [{"role": "user", "content": prompt}]
        seconds, is_hopeless = self._settings.call_seconds, False
        for _ in range(1 + len(FALLBACKS)):
            options = dict(self._options)  # another call may change them meanwhile
            try:
                async with asyncio.timeout(seconds):
                    create = client.chat.completions.create
                    return self._read(prompt, await create(model=self._model, messages=messages, **options)), False
            except openai.APIStatusError as error:
                refused = str(error.param or "") or next((name for name in options if f"'{name}'" in str(error)), "")
                if error.status_code == 400 and refused in options and refused in FALLBACKS:
                    value = self._options.pop(refused, None)
                    if FALLBACKS[refused] and value is not None:
                        self._options[FALLBACKS[refused]] = value
                    continue
                is_hopeless, why = error.status_code in HOPELESS, one_line(error)
            except TimeoutError:
                why = f"no answer in {seconds:g} s"
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                why = f"its answer is not OpenAI's: {one_line(error)}"
            except openai.OpenAIError as error:
                why = one_line(error)
            break
        return Answer(0, None, str(self._service.unreachable(self._model, "answers", why))), is_hopeless

    def _read(self, prompt: str, completion: Any) -> Answer:
        choice, usage = completion.choices[0], completion.usage
        text, is_cut = _bounded(choice.message.content or "", self._settings.answer_tokens)
        read, written = (
            int(getattr(usage, name, None) or _tokens(of))
            for name, of in (("prompt_tokens", prompt), ("completion_tokens", text))
        )
        return Answer(0, text, "", is_cut or choice.finish_reason == "length", read, written)

    def _only_model(self) -> str:
        try:
            with self._service.client("OpenAI", max_retries=1, timeout=15.0) as client:
                return self._service.only_model([str(one.id) for one in client.models.list().data])
        except (import_module("openai").OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise self._service.unreachable("", "models", one_line(error)) from None


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
        wanted = _indices(self._journal, prompts)
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
        how = self._settings
        written = generate_batches(
            self._model, tokens, new, rows=draws, top_k=SAMPLED if how.temperature else 0,
            temperature=how.temperature or 1.0, seed=how.seed, precision=how.precision,
        )  # fmt: skip
        for batch, texts, counts in written:
            for row, text, count in zip(batch.tolist(), texts, counts.tolist(), strict=True):
                bounded, is_cut = _bounded(text, self._settings.answer_tokens)
                is_cut = is_cut or (count >= self._model.query_length and not self.is_trained_writer)
                answer = Answer(0, bounded, "", is_cut, int(tokens.lengths[row]), count)
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


def delimited(text: str, tag: str, characters: int) -> str:
    """Returns `<tag>`, at most so many characters of a text, `</tag>`, for a prompt.

    The text can neither close the tag nor write the marks of a chat template, such as `<|im_end|>`.
    """
    text = re.sub(rf"<(?=\s*/?\s*{tag})", "‹", text[:characters], flags=re.IGNORECASE).replace("<|", "‹|")
    return f"<{tag}>\n{text.strip()}\n</{tag}>"


async def _closed(client: Any, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for calls that are given up."""
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()


def _indices(journal: Journal, prompts: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of equal prompts, by their key."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        indices[journal.key(prompt)].append(index)
    return indices


def _bounded(text: str, tokens: int) -> tuple[str, bool]:
    """An answer without what a model thinks before it, and whether it was cut; of a thought without an end, nothing."""
    text = text.encode("utf-8", "replace").decode()  # JSON may have half a pair of surrogates, which no file can
    spoken, longest = text.rpartition("</think>")[2].strip(), CHARACTERS * tokens
    if spoken.startswith("<think>"):
        return "", True
    return spoken[:longest], len(spoken) > longest


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // BYTES_OF_TOKEN)
