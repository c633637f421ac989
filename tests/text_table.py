"""Texts that are read as a dataset's passages are."""

import numpy as np


class TextTable:
    def __init__(self, texts: list[str], rows: np.ndarray | None = None) -> None:
        self.texts, self.rows = texts, rows

    def take(self, rows: np.ndarray) -> "TextTable":
        return TextTable(self.texts, rows)

    def full_texts(self) -> list[str]:
        assert self.rows is not None
        return [self.texts[row] for row in self.rows]
