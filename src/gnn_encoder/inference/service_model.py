"""A language model behind a service in OpenAI's form."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

from gnn_encoder.errors import Unreachable, one_line
from gnn_encoder.inference.answers import Answer, Estimate, Journal, bounded, tokens_about
from gnn_encoder.models.service import Service
from gnn_encoder.settings.language_model import Asking

REPEATS = 8
"""How often the client repeats a call that failed for a while (429, 5xx, a broken connection), after the time in
Retry-After or ever longer ones: 40 seconds in all."""
IN_A_ROW = 16
"""Failed calls, one after the other, after which no more are tried."""
HOPELESS = (401, 402, 404)
"""Answers of a service that another call will not change: no key, no money, no such model. A 403 may be of one prompt:
OpenRouter's moderation and web application firewalls answer so. Of a key without rights, 16 in a row end the run."""
FALLBACKS: Mapping[str, str] = {"max_tokens": "max_completion_tokens", "temperature": "", "seed": ""}
"""A parameter that a model may refuse → the name that it then has; empty: the model does without."""


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
        wanted = self._journal.indices(prompts)
        new = {key: prompts[indices[0]] for key, indices in wanted.items() if key not in self._journal}
        for key in wanted.keys() - new.keys():
            yield from self._journal.kept(key, wanted[key])
        failed_in_a_row, count, reason, stop = 0, 0, "", Event()
        for key, answer, is_hopeless in self._asked(new, stop):
            if answer.text is not None:
                self._journal.add(key, answer)
                failed_in_a_row, count = 0, count + 1
            else:
                failed_in_a_row += 1
            if not stop.is_set() and (is_hopeless or failed_in_a_row == IN_A_ROW):
                reason = answer.failure + ("" if is_hopeless else f" ({failed_in_a_row} failed calls in a row)")
                stop.set()  # calls under way may be paid for already: what comes of them is kept
            if not stop.is_set():
                for index in wanted[key]:
                    yield replace(answer, index=index)
        if reason:
            kept = "are kept: run again to go on" if self._journal.keeps else "are lost, as no folder keeps them"
            raise Unreachable(f"{reason}; {count:,} of {len(new):,} answers came and {kept}")

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
                free = 0 if stop.is_set() else self._settings.calls_at_once - len(tasks)
                for key, prompt in islice(todo, free):
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
                is_hopeless, reason = error.status_code in HOPELESS, one_line(error)
            except TimeoutError:
                reason = f"no answer in {seconds:g} s"
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                reason = f"its answer is not OpenAI's: {one_line(error)}"
            except openai.OpenAIError as error:
                reason = one_line(error)
            break
        return Answer(0, None, str(self._service.unreachable(self._model, "answers", reason))), is_hopeless

    def _read(self, prompt: str, completion: Any) -> Answer:
        choice, usage = completion.choices[0], completion.usage
        text, is_cut = bounded(choice.message.content or "", self._settings.answer_tokens)
        read, written = (
            int(getattr(usage, name, None) or tokens_about(words))
            for name, words in (("prompt_tokens", prompt), ("completion_tokens", text))
        )
        return Answer(0, text, "", is_cut or choice.finish_reason == "length", read, written)

    def _only_model(self) -> str:
        try:
            with self._service.client("OpenAI", max_retries=1, timeout=15.0) as client:
                return self._service.only_model(client)
        except (import_module("openai").OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise self._service.unreachable("", "models", one_line(error)) from None


async def _closed(client: Any, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for calls that are given up."""
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()
