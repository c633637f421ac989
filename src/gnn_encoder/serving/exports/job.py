"""One export that is under way: what is written and where, the questions of its replay, and the facts to keep."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.bundle import QUERY_ENCODER
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.artifacts.parts_folder import ADAPTER
from gnn_encoder.artifacts.replacing import partial_of, replace_content
from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.backbone import ADDRESS
from gnn_encoder.models.dual_encoder import LAYOUT, TextEncoder
from gnn_encoder.retrieval.learned_fusion import Alone, read_fusion
from gnn_encoder.retrieval.parts import FEATURES
from gnn_encoder.tracking.progress import NewProgress

QUESTIONS = 200
"""Texts that the replay asks the bundle and the export."""
FACTS = "export.json"


@dataclass(frozen=True)
class Job:
    """An export of `bundle`."""

    bundle: Bundle
    form: str
    target: str
    table: str = "passages"
    index: bool | None = None
    """Whether to have an approximate index; None: `index_by_default`, or what the updated table has."""
    index_by_default: bool = False
    update: bool = False
    same_encoder: bool = False
    """Whether an update refuses a table with vectors of another query encoder."""
    progress: NewProgress | None = None

    @property
    def width(self) -> int:
        """Components of a vector."""
        return int(self.bundle.vectors.shape[1])

    @property
    def new_index(self) -> bool:
        """Whether a new table gets an index."""
        return self.index_by_default if self.index is None else self.index

    @cached_property
    def encoder(self) -> TextEncoder:
        """The query encoder."""
        return TextEncoder.load(self.bundle.query_encoder_path)

    @cached_property
    def encoder_digest(self) -> str:
        """The digest of the query encoder's weights and layout (pooling, prompts, lengths), or of its address."""
        files = self.bundle.manifest.files.items()
        kinds = (".safetensors", f"/{ADDRESS}", f"/{LAYOUT}")
        return digest_of({n: f.sha256 for n, f in files if n.startswith(f"{QUERY_ENCODER}/") and n.endswith(kinds)})

    @cached_property
    def adapter(self) -> np.ndarray | None:
        """As `adapter_of` the bundle."""
        return adapter_of(self.bundle)

    @cached_property
    def questions(self) -> list[str]:
        """The texts that the replay asks the bundle and the export."""
        return questions_of(self.bundle)

    @cached_property
    def queries(self) -> np.ndarray:
        """The bundle's vectors fp32 [n, d] of the questions."""
        return encode_texts(self.encoder, self.questions, precision="fp32")

    def stage(self, name: str, total: int, unit: str = "rows") -> Callable[[int], None]:
        """Starts a stage of `total` units; the result counts units that are done."""
        if self.progress and total:
            return self.progress(name, total, unit).advance
        return lambda count: None

    def facts(self, sentence: str, **more: Any) -> dict[str, Any]:
        """Returns what is written beside an export, for its readers and for the next update."""
        return {
            "format": self.form,
            "system": self.bundle.system,
            "served_as": self.bundle.serving.system,
            "similarity": "inner product",
            "width": self.width,
            "bundle_digest": self.bundle.manifest.digest,
            "query_encoder_digest": self.encoder_digest,
            "replay": sentence,
            **more,
        }

    def check_former(self, target: str, facts: dict[str, Any]) -> None:
        """Raises UserError if the table at `target` with the facts of its export is not one to update from this job."""
        wanted = {"format": self.form, "system": self.bundle.system, "width": self.width}
        theirs = {name: facts.get(name) for name in wanted}
        if wanted != theirs:
            names = "{format} of {system}, width {width}"
            raise UserError(
                f"{target} holds {names.format(**theirs)}, not {names.format(**wanted)}: name another place"
            )
        if self.same_encoder and facts.get("query_encoder_digest", self.encoder_digest) != self.encoder_digest:
            raise UserError(
                f"{target} holds vectors of another query encoder, as of another training: name another place, and "
                "export the encoder, too"
            )
        if self.index is not None and self.index != bool(facts.get("index")):
            has = "an" if facts.get("index") else "no"
            raise UserError(f"{target} has {has} index, and an update keeps that: export to another place to change it")


def adapter_of(bundle: Bundle) -> np.ndarray | None:
    """Returns the matrix W fp32 [d, d] of a bundle that ranks by its query adapter alone; None: it ranks otherwise."""
    if (folder := bundle.fusion_path) is None:
        return None
    fusion = read_fusion(folder, FEATURES)
    return np.load(folder / ADAPTER) if isinstance(fusion, Alone) and fusion.feature == "adapted" else None


def questions_of(bundle: Bundle) -> list[str]:
    """Returns texts to ask for: the titles, or the first words, of passages that are evenly spaced over the corpus."""
    rows = np.unique(np.linspace(0, len(bundle.passages) - 1, QUESTIONS).astype(np.int64))
    passages = bundle.passages.take(rows)
    pairs = zip(passages.titles, passages.texts, strict=True)
    texts = (" ".join(text.split()[:12]) if is_blank(title) else title for title, text in pairs)
    return [text for text in texts if not is_blank(text)]


@contextmanager
def new_folder(target: Path, advice: str = "name a folder that does not") -> Iterator[Path]:
    """Yields a folder that gets the name `target` at the end; after an error nothing is left."""
    if target.exists():
        raise UserError(f"{target} exists: {advice}")
    partial = partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def export_to_folder(job: Job, write: Callable[[Job, Path], None], replay: Callable[[Job, Path], str]) -> str:
    """Writes an export into a new folder, replays it, and returns what was compared, in words."""
    with new_folder(Path(job.target)) as folder:
        write(job, folder)
        compared = replay(job, folder)
        write_facts(folder, job.facts(compared))
    return compared


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Writes facts into a folder, in place of earlier ones."""
    replace_content(folder / FACTS, json.dumps(facts, indent=1).encode())


def missing(package: str, extra: str) -> UserError:
    """Returns the error for a package that is not installed."""
    return UserError(f'this export needs {package}: pip install "gnn-encoder[{extra}]"')
