"""A language model that answers prompts: a service in OpenAI's form, or a model of this machine; each answer paid once.

    model = open_language_model("http://localhost:11434/v1#llama3.2", settings, folder)
    for answer in model.answers(prompts):  # in the order in which they come
        ...

Each answer of a service is appended to a journal in `folder` before it is handed out. Another attempt, after whatever
ended this one, takes the answers of the journal and asks the others alone. Answers of this machine are kept in the
same way, by whole batches: the last bits of a text's logits depend on its batch.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gnn_encoder.inference.answers import Answer, Estimate
from gnn_encoder.inference.local_model import LocalModel
from gnn_encoder.inference.service_model import ServiceModel
from gnn_encoder.settings.language_model import Asking
from gnn_encoder.settings.shared import is_address


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
) -> ServiceModel | LocalModel:
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


def delimited(text: str, tag: str, characters: int) -> str:
    """Returns `<tag>`, at most so many characters of a text, `</tag>`, for a prompt.

    The text can neither close the tag nor write the marks of a chat template, such as `<|im_end|>`.
    """
    text = re.sub(rf"<(?=\s*/?\s*{tag})", "‹", text[:characters], flags=re.IGNORECASE).replace("<|", "‹|")
    return f"<{tag}>\n{text.strip()}\n</{tag}>"
