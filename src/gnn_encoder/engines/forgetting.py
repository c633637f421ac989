"""Takes texts, and everything made from them, out of a root and its exports: `gnn-encoder forget`.

    forgotten/digests.json      salted digests of all that was ever forgotten: each later run leaves it out
    forgotten/TIME.json         the record of one forgetting, without any text
    forgotten/unfinished.jsonl  what a forgetting that has not ended has changed
    forgotten/settings.yaml     the settings of the last training with these texts

The served bundles are made anew, by an update that leaves the texts out. What else was made from a dataset with the
texts is deleted, because it is a cache: a later run makes it again. Trained weights stay, and the record lists them.

The digests are written first, and the artifacts with the texts deleted last. So the same command finishes what was
interrupted.
"""

import getpass
import json
import os
import re
import shlex
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gnn_encoder import __version__
from gnn_encoder.artifacts import Bundle, WrittenQueries
from gnn_encoder.artifacts.added_labels import ADDED_LABELS, read_labels
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.artifacts.finished_run import BUNDLE, BUNDLES, bundles_of, check_place
from gnn_encoder.artifacts.folder import MANIFEST, Manifest, digest_of, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.passages import CORPUS_SCHEMA, StoredTable, passage_text
from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.artifacts.report import SETTINGS
from gnn_encoder.artifacts.texts import folded, text_lines
from gnn_encoder.data.forgotten import Forgotten
from gnn_encoder.engines import forgotten_stores, lifeline, pipelines, prune
from gnn_encoder.engines.climbed import KEPT_RERANKERS, rung_of
from gnn_encoder.engines.climbing import climbing_again, climbs_again
from gnn_encoder.engines.forgotten_files import Traces, without_answers
from gnn_encoder.engines.forgotten_versions import withdraw_versions
from gnn_encoder.engines.latest import FORGOTTEN, KEPT_LABELS
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.provenance import DATA
from gnn_encoder.engines.supervision import Show
from gnn_encoder.errors import UserError
from gnn_encoder.inference.answers import JOURNAL
from gnn_encoder.judging.pool import POOL
from gnn_encoder.labels.versions import FOLDER, Versions
from gnn_encoder.storage import cache_folder
from gnn_encoder.tracking.pipeline_run import own_store
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.update.paid import forget as forget_paid

KINDS = ("queries", "passages")
OF_STATE = ("model", "recommendation", "decision")
"""Schemas of what an update leaves in `latest/`: weights, and figures that a later update reads."""
UNFINISHED = "unfinished.jsonl"
"""Beside the records: what this forgetting and its interrupted attempts have changed, one change a line."""


def read_wanted(file: Path) -> set[str]:
    """Returns the ids and texts that a file names, one a line; raises UserError if it cannot be read or names none."""
    try:
        wanted = {line.strip() for _, line in text_lines(file)} - {""}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error}): write an id or a whole text a line") from None
    if not wanted:
        raise UserError(f"{file} names nothing: write an id or a whole text a line")
    return wanted


def texts_in(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields (kind, id, whole text, text without title) of the queries and passages in a file of an artifact."""
    if file.name == ADDED_LABELS or (file.parent.name == KEPT_LABELS and file.suffix == ".jsonl"):
        for label in read_labels(file):
            yield KINDS[0], label.query_id, label.query, label.query
    elif file.suffix == ".parquet":
        names = set(pq.read_schema(file).names)
        is_corpus = {*CORPUS_SCHEMA.names} <= names
        columns = CORPUS_SCHEMA.names if is_corpus else ["query_id", "text"]
        for batch in StoredTable(file).batches(*columns) if {*columns} <= names else ():
            for name, *texts in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield KINDS[is_corpus], name, passage_text(*texts) if is_corpus else texts[-1], texts[-1]


class Forgetting:
    """A forgetting in a root, which goes on with an interrupted one.

    holding   files in which forgotten queries and passages are kept as such → their (kind, id)
    texts     the forgotten texts that the root had, passages with and without titles
    began     when the first attempt with these names began: reports before have them
    """

    def __init__(self, root: Path) -> None:
        self.root, self.latest, self.file = root, root / "latest", root / FORGOTTEN
        self._unfinished = self.file.with_name(UNFINISHED)
        self.forgotten = Forgotten.read(self.file) if self.file.exists() else Forgotten()
        self.holding = defaultdict[Path, set[tuple[str, str]]](set)
        self.texts: set[str] = set()
        self.began = time.time()

    def note(self, change: str, *objects: Path | str) -> None:
        """Notes what is "rewritten", "deleted", or "left" because it may have a text and is not changed here."""
        with self._unfinished.open("a", encoding="utf-8") as file:
            # A line begins with its end, so that one which a full disk has cut spoils no other.
            file.writelines(f"\n{json.dumps([change, str(one)])}" for one in objects)

    def notes(self) -> dict[str, list[str]]:
        """Returns what was noted, of interrupted attempts, too."""
        notes: dict[str, dict[str, None]] = {change: {} for change in ("began", "data", "rewritten", "deleted", "left")}
        for line in self._unfinished.read_text("utf-8").splitlines() if self._unfinished.exists() else ():
            with suppress(ValueError):  # it was cut
                change, one = json.loads(line)
                notes[change][one] = None
        return {change: list(objects) for change, objects in notes.items()}

    def manifests(self) -> dict[Path, Manifest]:
        """Returns the artifacts of all runs; their files are not checked."""
        paths = prune.artifacts_in(self.root / "pipeline")
        return {path: Manifest(**json.loads((path / MANIFEST).read_text("utf-8"))) for path in paths}

    def rows(self) -> Iterator[tuple[list[Path], str, str, list[str]]]:
        """Yields the queries and passages that are kept as such: the names of their file, kind, id, and texts, the
        whole one first.
        """
        folders = [*prune.artifacts_in(self.root / "pipeline"), self.root / KEPT_LABELS]
        folders += [folder / FOLDER for folder in (self.latest, self.latest / BUNDLES)]
        files = defaultdict[int, list[Path]](list)
        for path in (path for folder in folders for path in folder.rglob("*")):
            if path.suffix in (".parquet", ".jsonl") and path.is_file():
                files[path.stat().st_ino].append(path)
        for names in files.values():
            for kind, name, *texts in texts_in(names[0]):
                yield names, kind, name, texts

    def begin(self, wanted: Mapping[str, set[str]], dataset: str | None) -> None:
        """Writes the digests of all that is named by id or text, and of the datasets that have it, or are behind
        bundles with it; raises UserError for the name of nothing. `dataset`: of the update, if the data have moved.
        """
        forgotten, by_text = self.forgotten, {kind: set(map(folded, names)) for kind, names in wanted.items()}
        unknown = {(kind, name) for kind, names in by_text.items() for name in names}
        for _, kind, name, texts in self.rows():
            if kind in wanted and (name in wanted[kind] or by_text[kind] & set(map(folded, texts))):
                getattr(forgotten, kind).add(forgotten.digest(texts[0]))
                unknown -= {(kind, folded(text)) for text in (name, *texts)}
        for kind, name in sorted(unknown):
            if forgotten.digest(name) not in forgotten.names | forgotten.queries | forgotten.passages:
                missing = f"nothing in {self.root} has {name[:80]!r} among its {kind}"
                raise UserError(f"{missing}: name an id or a whole text")
        digests = {forgotten.digest(name) for names in by_text.values() for name in names}
        self.file.parent.mkdir(exist_ok=True)
        if not digests <= forgotten.names or not self.notes()["began"]:  # else the command of an interrupted attempt
            self.note("began", str(time.time()))
        if (data := self.latest / "dataset").exists():
            manifest = read_manifest(data)
            source = manifest.settings.get("dataset", "")
            self.note("data", json.dumps({"from": source, "to": dataset or source, "digest": manifest.digest}))
        self.began = float(self.notes()["began"][-1])
        forgotten.names.update(digests)
        self.look()
        for path, manifest in self.manifests().items():
            if self.holds(path):
                of = manifest.digest if manifest.schema == "dataset" else manifest.inputs.get("dataset", "")
                forgotten.datasets.update({of} - {""})
        forgotten.write(self.file)

    def look(self) -> None:
        """Finds the files that hold forgotten texts."""
        self.holding.clear()
        for files, kind, name, texts in self.rows():
            if self.forgotten.digest(texts[0]) in getattr(self.forgotten, kind):
                self.texts.update(texts)
                for file in files:
                    self.holding[file].add((kind, name))

    def holds(self, folder: Path) -> set[tuple[str, str]]:
        """Returns (kind, id) of the forgotten queries and passages in a file, or below a folder."""
        parts = [rows for file, rows in self.holding.items() if file.is_relative_to(folder.resolve())]
        return set().union(*parts)

    def passages(self, folder: Path) -> set[str]:
        """Returns the ids of the forgotten passages below a folder."""
        return {name for kind, name in self.holds(folder) if kind == KINDS[1]}

    def affected(self) -> dict[Path, Manifest]:
        """Returns the artifacts that were made from the texts, without those that are the same without the texts."""
        manifests, datasets = self.manifests(), self.forgotten.datasets
        affected, digests, of_models = dict[Path, Manifest](), set(datasets), set[str]()

        def is_made(path: Path, manifest: Manifest) -> bool:
            # `prune` may have deleted what is between a dataset and a bundle with its texts.
            if manifest.digest in datasets or (of := manifest.inputs.get("dataset")) in datasets or self.holds(path):
                return True
            known = digests | of_models if manifest.schema == "model" else digests
            return of is None and not known.isdisjoint(manifest.inputs.values())

        while more := {path: one for path, one in manifests.items() if path not in affected and is_made(path, one)}:
            affected |= more
            digests |= {manifest.digest for manifest in more.values() if manifest.schema != "model"}
            of_models |= {manifest.digest for manifest in more.values() if manifest.step.startswith("train_")}
        same = {manifest.digest for path, manifest in manifests.items() if path not in affected}
        return {path: manifest for path, manifest in affected.items() if manifest.digest not in same}

    def take_labels_out(self) -> None:
        """Takes the added labels of the texts out of the bundles in `latest/`."""
        from gnn_encoder.labels.adding import replace_labels  # imports torch

        passages = self.passages(self.latest / "dataset")
        for link in bundles_of(self.latest):
            labels = added.labels if link.is_symlink() and (added := Bundle.read(link).added) else []
            kept = [of for of in labels if not self.forgotten.has_query(of.query) and of.passage_id not in passages]
            if len(kept) < len(labels):
                replace_labels(link, kept)
                self.note("rewritten", link)

    def update(self, dataset: str | None) -> Callable[[Show], Outcome] | None:
        """Returns what makes the bundles in `latest/` anew without the texts; None if they do without already."""
        if not (self.latest / "dataset").exists():
            return None
        served = [read_manifest(self.latest / name) for name in ("dataset", BUNDLE) if (self.latest / name).exists()]
        made_from = {digest for one in served for digest in (one.digest, one.inputs.get("dataset"))}
        labels = Path(served[0].settings.get("labels", ""))
        if labels not in self.holding and made_from.isdisjoint(self.forgotten.datasets):
            return None
        if climbs_again(self.latest):
            return climbing_again(self.latest.resolve(), dataset, [], self.root).run
        return partial(pipelines.update, self.latest, dataset, [], self.root)

    def clean_stores(self, affected: Mapping[Path, Manifest], traces: Traces) -> None:
        """Withdraws registered versions, and takes the texts out of what object stores and MLflow have of runs."""
        uris = prune.stores(self.root)
        moves = [json.loads(move) for move in self.notes()["data"]]
        withdraw_versions(uris, self.root, self.manifests(), affected, moves, self.note)
        forgotten_stores.remove_checkpoints(self.root, uris, self.note)
        for uri in uris:
            if uri != own_store(self.root):
                forgotten_stores.clean_runs(uri, self.root, traces, self.began, self.note)

    def clean_files(self, affected: Mapping[Path, Manifest], traces: Traces) -> None:
        """Takes the texts out of caches, logs and MLflow's copies of files, by one rule for each kind of them."""
        manifests, paid = self.manifests(), text_digests(self.texts)
        written = [path for path, of in manifests.items() if of.schema == "written_queries" and path not in affected]
        answers = {answer for path in written for answer in WrittenQueries.read(path).answer}
        stays = answers.__contains__ if self.passages(self.root / "pipeline") else lambda answer: True
        rules: tuple[tuple[str, str, Callable[[Path], object]], ...] = (
            ("tokens/*", "deleted", lambda path: True),
            ("checkpoints/*", "deleted", lambda path: prune.OF_CALL.fullmatch(path.name)),
            (f"{KEPT_LABELS}/*", "deleted", self.holds),
            ("artifacts/*/artifacts/*", "deleted", lambda path: self._is_old(path) or traces.below(path)),
            ("logs/*", "rewritten", lambda path: path.is_file() and traces.without_lines(path)),
            (f"checkpoints/answers-*/{JOURNAL}", "rewritten", lambda path: without_answers(path, stays)),
            ("checkpoints/paid-*", "rewritten", lambda path: forget_paid(path, paid)),
        )
        self._delete(prune.PARTS, [*prune.leftovers(self.root)])
        fetched = [path for path in cache_folder().glob("*") if re.fullmatch("[0-9a-f]{32}", path.name)]
        self._delete(prune.PARTS, [path for path in fetched if traces.below(path)])
        # Outside of the root may be files of others.
        linked = [name for name in (*prune.PROGRAMS, KEPT_LABELS) if (self.root / name).is_symlink()]
        self.note("left", *(self.root / name for name in linked))
        for pattern, change, affects in rules:
            for path in sorted(self.root.glob(pattern)) if pattern.partition("/")[0] not in linked else ():
                if affects(path):
                    self._delete(prune.PARTS, [path]) if change == "deleted" else self.note(change, path)

    def _is_old(self, path: Path) -> bool:
        return path.name in forgotten_stores.OF_QUERIES and path.stat().st_mtime < self.began

    def delete_artifacts(self, affected: Mapping[Path, Manifest]) -> None:
        """Deletes what was made from the texts, but for weights in `latest/`, and what `labels undo` would restore."""
        for link in bundles_of(self.latest):
            if link.is_symlink() and link.with_name(FOLDER).is_dir():
                with Versions(link) as versions:
                    versions.keep_present()
        links = [path for path in self.latest.rglob("*") if path.is_symlink()]
        linked = {path.resolve() for path in links}
        gone = [path for path, of in affected.items() if path.resolve() not in linked or of.schema not in OF_STATE]
        self._delete(prune.OUTPUTS, sorted(gone, key=lambda path: affected[path].schema == "dataset"))
        for link in links:
            if not link.exists():
                link.unlink(missing_ok=True)

    def _delete(self, kind: str, paths: Sequence[Path]) -> None:
        self.note("deleted", *paths)
        prune.remove(prune.Unneeded(kind, path) for path in paths)

    def search(self, traces: Traces, exports: Iterable[Path]) -> None:
        """Notes where a text is left outside of artifacts: in the root, in exports and in the data."""
        paths = [*self._files_of_others()]
        paths += [path for path in exports if path.is_file() or (path / POOL).is_file()]
        if (data := self.latest / "dataset").exists():
            manifest = read_manifest(data)
            self.note("left", *filter(None, [manifest.metrics.get("forgotten")]))
            paths += [Path(name) for setting in DATA if (name := manifest.settings.get(setting))]
        paths = sorted({*paths})
        progress, left = Progress("forget", "searching", len(paths), "files"), list[Path]()
        for path in paths:
            left += [path] if traces.below(path, short=True) else []
            progress.advance()
        self.note("left", *left)

    def _files_of_others(self) -> Iterator[Path]:
        """Yields the root's files and links that are not in `pipeline` and do not lead there."""
        pipeline = (self.root / "pipeline").resolve()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if Path(folder, name) != self.root / "pipeline"]
            for path in (Path(folder, name) for name in (*names, *folders)):
                if path.is_symlink() or path.is_file():
                    yield from [] if path.resolve().is_relative_to(pipeline) else [path]

    def trained(self) -> list[dict[str, Any]]:
        """Returns the models and bundles whose weights were trained with the texts, each with the steps that did."""
        weights = [path for path, manifest in self.manifests().items() if manifest.schema in ("model", "bundle")]
        left = []
        for path in (*weights, *self.root.glob(f"{KEPT_RERANKERS}/*/")):
            steps = [
                title
                for title, record in read_history(path).items()
                if title.startswith("train_") and not self.forgotten.datasets.isdisjoint(record.inputs.values())
            ]
            left += [{"path": str(path), "steps": steps}] if steps else []
        return left

    def training(self) -> str:
        """Returns the command that trains without the texts."""
        words = ["gnn-encoder", "run", "--root", str(self.root)]
        if (data := self.latest / "dataset").exists():
            words += ["--dataset", read_manifest(data).settings["dataset"]]
        if (settings := self.file.with_name(SETTINGS)).is_file():
            words += ["--preset", str(settings)]
        if rung := rung_of(self.latest):
            words += ["--until", rung.replace(" ", "-")]
        return shlex.join(words)

    def record(self, wanted: Iterable[str], signed: str) -> tuple[Path, dict[str, Any]]:
        """Writes the record of all attempts; returns the file and its content."""
        notes, trained = self.notes(), self.trained()
        began, ended = (
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (float(notes["began"][0]), time.time())
        )
        record = {
            "began": began, "ended": ended, "signed": signed or f"{getpass.getuser()}@{socket.gethostname()}",
            "version": __version__, "salt": self.forgotten.salt,
            **{kind: sorted(getattr(self.forgotten, kind)) for kind in wanted},
            "rewritten": notes["rewritten"], "deleted": notes["deleted"],
            "trained": trained, "training": self.training() if trained else "", "left": notes["left"],
        }  # fmt: skip
        record["digest"] = digest_of(record)
        path = self.file.with_name(f"{began.replace('-', '').replace(':', '')}.json")
        replace_content(path, json.dumps(record, indent=1).encode())
        self._unfinished.unlink()
        return path, record


def forget(
    root: Path,
    wanted: Mapping[str, set[str]],
    exports: Sequence[Path | str],
    signed: str,
    run: Callable[[Callable[[Show], Outcome]], Outcome],
    dataset: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Forgets texts in a root and its exports; returns the record's file, and the record.

    Args:
        wanted: ids or whole texts of "queries" and "passages".
        exports: as `forgotten_stores.renew` takes them.
        signed: who signs the record; empty: this user on this machine.
        run: runs the update, and raises if it fails.
        dataset: the data, if they have moved since the run.

    Raises:
        UserError: a name of nothing; or the update or an export fails. Then what has the texts is still there, and the
            same command goes on.
    """
    root = root.resolve()
    prune.check_root(root)
    check_place(root)
    for uri in prune.stores(root):
        prune.registries(uri, root)  # or it ends here, before an update that may take long
    job, latest = Forgetting(root), root / "latest"
    job.begin(wanted, dataset)
    job.take_labels_out()
    if (settings := latest / "report" / SETTINGS).is_file():
        shutil.copyfile(settings, job.file.with_name(SETTINGS))
    if update := job.update(dataset):
        run(update)
        job.look()
        if job.holds(latest / "dataset"):
            raise UserError(f"{latest / 'dataset'} has them again: of queries that were written, forget the passages")
        job.note("rewritten", *bundles_of(latest))
    with lifeline.take(root):
        affected, traces = job.affected(), Traces(job.texts)
        job.clean_stores(affected, traces)
        for target in exports:
            forgotten_stores.renew(str(target), latest, traces, job.note)
        job.clean_files(affected, traces)
        job.delete_artifacts(affected)
        job.search(traces, [Path(target) for target in exports if "://" not in str(target)])
        return job.record(wanted, signed)
