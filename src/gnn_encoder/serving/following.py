"""The bundle that a name leads to, now and later: a moved alias or link is noticed, checked, and served.

The new bundle is opened beside the old one and asked a question. Only then is it served, by one assignment, so that
no question meets half of both. A bundle that cannot be opened, or whose scores are no numbers, is refused, and the old
one is served on.
"""

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.promotion.registry import DIGEST, Version, named_bundle, named_version, version_folder
from gnn_encoder.serving.retriever import Retriever

PROBE = "what is this about?"
RETRY = 60.0
"""Seconds until a refused bundle is opened again: the store may have been the reason."""


@dataclass(frozen=True)
class Served:
    """An opened bundle; `version`: its number in the registry, or the first twelve digits of its digest."""

    retriever: Retriever
    version: str

    @property
    def system(self) -> str:
        """The system as which the bundle is served, such as `BM25 + Query memory`."""
        return self.retriever.bundle.serving.system


class Followed:
    """What a bundle's name leads to."""

    def __init__(self, name: str, root: Path, rights_field: str | None = None) -> None:
        """Opens the bundle; raises UserError as `Retriever.load`, or if the bundle answers no numbers.

        rights_field: a field that each bundle must have, since it says who may see a passage.
        """
        self.name, self._root, self._rights_field = name, root, rights_field
        self._target, version = self._look_up()
        self.current = self._opened(version)
        self.refused = ""
        """Why what the name leads to now is not served; empty if it is."""
        self._retry_at = 0.0

    def look(self) -> bool:
        """Looks where the name leads now, and returns whether another bundle is served since.

        A refused bundle is opened again after `RETRY` seconds, or if the name leads elsewhere.
        """
        try:
            target, version = self._look_up()
            if target == self._target and (not self._retry_at or time.monotonic() < self._retry_at):
                self.refused = self.refused if self._retry_at else ""
                return False
            self._target, self._retry_at = target, math.inf
            self.current = self._opened(version)
        except Exception as error:  # whatever is wrong with the new bundle or its store: the old one is served on
            self.refused = one_line(error)
            if self._retry_at == math.inf:  # the bundle was refused, and not the store that names it
                self._retry_at = time.monotonic() + RETRY
            return False
        self._retry_at = 0.0
        self.refused = ""
        return True

    def _look_up(self) -> tuple[tuple[str, ...], Version | None]:
        """Returns what tells one bundle from the next, and the registered version that the name leads to."""
        if version := named_version(self.name, self._root):
            return (version.number, version.tags.get(DIGEST, "")), version
        folder = named_bundle(self.name, self._root)
        try:
            state = (folder / MANIFEST).stat()
        except OSError as error:
            raise UserError(f"{folder} is no complete bundle: {error.strerror}") from None
        return (str(folder.resolve()), str(state.st_mtime_ns)), None

    def _opened(self, version: Version | None) -> Served:
        folder = version_folder(version, self._root) if version else named_bundle(self.name, self._root)
        retriever = Retriever.load(folder)
        retriever.starts_quickly = "transformers" not in sys.modules
        digest = retriever.bundle.manifest.digest
        if version and version.tags.get(DIGEST, digest) != digest:
            raise UserError(f"{folder} is not the bundle that was registered as version {version.number}")
        bundle = retriever.bundle
        if self._rights_field is not None:
            retriever.filters.require(self._rights_field)
        _ = bundle.calibration  # raises Damaged
        ways: list[dict[str, Any]] = [{}]
        ways += [{"fuse": False}] if bundle.has_vectors else []
        ways += [{"fuse": True}] if bundle.has_vectors and bundle.bm25_path and not bundle.fusion_path else []
        ways += [{"rerank": True}] if bundle.reranker_path else []
        for way in ways:  # each part of the bundle is read before it is served
            hits = retriever.search(PROBE, 10, **way)
            if not all(math.isfinite(hit.score) for hit in hits):
                raise UserError(f"{folder}: a question got a score that is no number, so it is not served")
        return Served(retriever, version.number if version else digest[:12])
