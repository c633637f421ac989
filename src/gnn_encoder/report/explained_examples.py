"""Why the examples of a report rank as they do: for each passage of one system, what the graph made of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, passage_text
from gnn_encoder.explanation.passages import Sources
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.scorers import Scorer
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.report.examples import Example

NEIGHBORS = 3
"""Training queries told of each passage."""


class ExampleExplainer:
    """Adds to examples what flowed into the passages that `system` ranked first."""

    def __init__(self, system: str, artifacts: Mapping[str, Path], speed: Mapping[str, Any]) -> None:
        """Open the artifacts, by name: the bundle and what explains it; `speed`: of encoding."""
        self.system, self._speed = system, speed
        self._sources = Sources.read(artifacts)
        self._encoder = TextEncoder.load(Bundle.read(artifacts["bundle"]).query_encoder_path)

    def explain(self, examples: list[Example], hits: np.ndarray) -> list[Example]:
        """The examples [e], from the system's passage rows of each [e, s], -1 where there are fewer."""
        questions = encode_texts(self._encoder, [example.query for example in examples], **self._speed)
        whys = self._sources.explain(questions, hits, neighbors=NEIGHBORS)
        explained = []
        for example, why in zip(examples, whys, strict=True):
            found = [replace(passage, why=of) for passage, of in zip(example.rankings[self.system], why, strict=True)]
            explained.append(replace(example, rankings={**example.rankings, self.system: found}))
        return explained


def explained_by(scorer: Scorer, system: str, examples: list[Example]) -> list[Example]:
    """The examples with what the scores of `system`'s passages are made of, by the scorer that ordered them."""
    explained = []
    for example in examples:
        found = [
            replace(each, parts=tuple(scorer.explain(example.query, passage_text(each.title, each.text))))
            for each in example.rankings[system]
        ]
        explained.append(replace(example, rankings={**example.rankings, system: found}))
    return explained
