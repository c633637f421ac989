"""Takes texts, and everything made from them, out of a root and its exports: `gnn-encoder forget`.

    forgotten/digests.json  salted digests of all that was ever forgotten: each later run leaves it out
    forgotten/TIME.json     the record of one forgetting, without any text
    forgotten/settings.yaml the settings of the last training with these texts

The served bundles are made anew, by an update that leaves the texts out. What else was made from a dataset with the
texts is deleted, because it is a cache: a later run makes it again. Trained weights stay, and the record lists them.

The digests are written first, and the artifacts with the texts deleted last. So the same command finishes what was
interrupted.
"""

import getpass
import json
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gnn_encoder import __version__
from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.added_labels import ADDED_LABELS, read_labels
from gnn_encoder.artifacts.finished_run import BUNDLE, BUNDLES, bundles_of
from gnn_encoder.artifacts.folder import MANIFEST, Manifest, digest_of, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.passages import CORPUS_SCHEMA, StoredTable, passage_text
from gnn_encoder.artifacts.report import SETTINGS
from gnn_encoder.artifacts.texts import folded, text_lines
from gnn_encoder.artifacts.written_queries import WRITTEN, WrittenQueries
from gnn_encoder.data.forgotten import Forgotten
from gnn_encoder.engines import lifeline, pipelines
from gnn_encoder.engines.climbed import KEPT_RERANKERS, rung_of
from gnn_encoder.engines.climbing import climbing_again, climbs_again
from gnn_encoder.engines.forgotten_files import Traces, renewed, without_answers, without_vectors
from gnn_encoder.engines.latest import FORGOTTEN, KEPT_LABELS
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.provenance import DATA
from gnn_encoder.engines.prune import (
    OF_CALL,
    OUTPUTS,
    PARTS,
    PROGRAMS,
    Unneeded,
    artifacts_in,
    check_root,
    leftovers,
    registries,
    remove,
    stores,
)
from gnn_encoder.engines.supervision import Show
from gnn_encoder.errors import UserError, without_password
from gnn_encoder.inference.answers import JOURNAL
from gnn_encoder.judging.pool import POOL
from gnn_encoder.labels.versions import FOLDER, Versions
from gnn_encoder.promotion.registry import BUNDLE as ADDRESS
from gnn_encoder.promotion.registry import CHAMPION, DECISION, DIGEST, QUERIES, REASON, Registry, Version
from gnn_encoder.storage import Transfer, cache_folder, is_remote, put_folder
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.pipeline_run import addressed, impatient, own_store

KINDS = ("queries", "passages")
OF_STATE = ("model", "recommendation", "decision")
"""Schemas of what an update leaves in `latest/`: weights, and figures that a later update reads."""
OF_QUERIES = ("report", "study", "select_queries", "generated_queries")
"""Folders with queries among the copies of files that MLflow has of a run."""


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
        if {*CORPUS_SCHEMA.names} <= names:
            for batch in StoredTable(file).batches(*CORPUS_SCHEMA.names):
                for name, title, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield KINDS[1], name, passage_text(title, text), text
        elif {"query_id", "text"} <= names:
            for batch in StoredTable(file).batches("query_id", "text"):
                for name, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield KINDS[0], name, text, text


@dataclass
class Forgetting:
    """A forgetting in a root.

    `texts`: the forgotten texts that the root had, passages with and without titles.
    `rewritten`, `deleted`: files and folders. `left`: places that may have a text and are not changed here.
    """

    root: Path
    forgotten: Forgotten
    began: float = field(default_factory=time.time)
    texts: set[str] = field(default_factory=set)
    rewritten: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    _holding: dict[tuple[int, int, int], set[tuple[str, str]]] = field(default_factory=dict)

    @property
    def latest(self) -> Path:
        """ROOT/latest."""
        return self.root / "latest"

    def manifests(self) -> dict[Path, Manifest]:
        """Returns the artifacts of all runs; their files are not checked."""
        paths = artifacts_in(self.root / "pipeline")
        return {path: Manifest(**json.loads((path / MANIFEST).read_text("utf-8"))) for path in paths}

    def _tables(self) -> Iterator[Path]:
        """Yields the files in which queries and passages are kept as such."""
        folders = [*artifacts_in(self.root / "pipeline"), self.root / KEPT_LABELS]
        folders += [folder / FOLDER for folder in (self.latest, self.latest / BUNDLES)]
        seen = set()
        for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
            if path.suffix in (".parquet", ".jsonl") and (inode := path.stat().st_ino) not in seen:
                seen.add(inode)
                yield path

    def find(self, wanted: Mapping[str, set[str]]) -> None:
        """Adds the digests of all that is named by id or text; raises UserError for the name of nothing."""
        by_text = {kind: {folded(name) for name in names} for kind, names in wanted.items()}
        unknown = {(kind, name) for kind, names in by_text.items() for name in names}
        for file in self._tables():
            for kind, name, *texts in texts_in(file):
                if kind in wanted and (name in wanted[kind] or by_text[kind] & {folded(text) for text in texts}):
                    getattr(self.forgotten, kind).add(self.forgotten.digest(texts[0]))
                    unknown -= {(kind, folded(text)) for text in (name, *texts)}
        earlier = self.forgotten.names | self.forgotten.queries | self.forgotten.passages
        for kind, name in sorted(unknown):
            if self.forgotten.digest(name) not in earlier:
                raise UserError(
                    f"nothing in {self.root} has {name[:80]!r} among its {kind}: name an id or a whole text"
                )
        self.forgotten.names.update(self.forgotten.digest(name) for names in by_text.values() for name in names)

    def _holds(self, file: Path) -> set[tuple[str, str]]:
        """Returns (kind, id) of the forgotten queries and passages that a file has as such; their texts are kept."""
        facts = file.stat()
        key = (facts.st_dev, facts.st_ino, facts.st_mtime_ns)  # a new file may have the number of a deleted one
        if key not in self._holding:
            self._holding[key] = set()
            for kind, name, *texts in texts_in(file):
                if self.forgotten.digest(texts[0]) in getattr(self.forgotten, kind):
                    self._holding[key].add((kind, name))
                    self.texts.update(texts)
        return self._holding[key]

    def _passages(self, folder: Path) -> set[str]:
        """Returns the ids of the forgotten passages below a folder."""
        files = (file for file in folder.rglob("*") if file.is_file())
        return {name for file in files for kind, name in self._holds(file) if kind == KINDS[1]}

    def _holds_below(self, folder: Path) -> bool:
        return any(self._holds(file) for file in folder.rglob("*") if file.is_file())

    def note_datasets(self) -> None:
        """Writes the digests, with those of the datasets that have the texts, and of those behind bundles with them."""
        for file in self._tables():
            self._holds(file)
        for path, manifest in self.manifests().items():
            if self._holds_below(path):
                of = manifest.digest if manifest.schema == "dataset" else manifest.inputs.get("dataset", "")
                self.forgotten.datasets.update({of} - {""})
        self.forgotten.write(self.root / FORGOTTEN)

    def affected(self) -> dict[Path, Manifest]:
        """Returns the artifacts that were made from the texts, without those that are the same without the texts."""
        manifests, datasets = self.manifests(), self.forgotten.datasets
        affected, digests, of_models = dict[Path, Manifest](), set(datasets), set[str]()

        def is_made(manifest: Manifest) -> bool:
            if manifest.digest in datasets or (of := manifest.inputs.get("dataset")) in datasets:
                return True
            known = digests | of_models if manifest.schema == "model" else digests
            return of is None and not known.isdisjoint(manifest.inputs.values())

        # `prune` may have deleted what is between a dataset and a bundle with its texts.
        more = {path: one for path, one in manifests.items() if is_made(one) or self._holds_below(path)}
        while more:
            affected |= more
            digests |= {manifest.digest for manifest in more.values() if manifest.schema != "model"}
            of_models |= {manifest.digest for manifest in more.values() if manifest.step.startswith("train_")}
            more = {path: one for path, one in manifests.items() if path not in affected and is_made(one)}
        same = {manifest.digest for path, manifest in manifests.items() if path not in affected}
        return {path: manifest for path, manifest in affected.items() if manifest.digest not in same}

    def take_labels_out(self) -> None:
        """Takes the added labels of the texts out of the bundles in `latest/`."""
        from gnn_encoder.labels.adding import replace_labels  # imports torch

        passages = self._passages(self.latest / "dataset")
        for link in bundles_of(self.latest):
            if not link.is_symlink() or not (added := Bundle.read(link).added):
                continue
            kept = [
                label
                for label in added.labels
                if not self.forgotten.has_query(label.query) and label.passage_id not in passages
            ]
            if len(kept) < len(added.labels):
                replace_labels(link, kept)
                self.rewritten.append(str(link))

    def update(self, dataset: str | None) -> Callable[[Show], Outcome] | None:
        """Returns what makes the bundles in `latest/` anew without the texts; None if they do without already."""
        if not (self.latest / "dataset").exists():
            return None
        served = [read_manifest(self.latest / name) for name in ("dataset", BUNDLE) if (self.latest / name).exists()]
        labels = Path(served[0].settings.get("labels") or self.root)
        of_labels = labels.is_file() and self._holds(labels)
        made_from = {digest for one in served for digest in (one.digest, one.inputs.get("dataset"))}
        if not of_labels and self.forgotten.datasets.isdisjoint(made_from):
            return None
        if climbs_again(self.latest):
            return climbing_again(self.latest.resolve(), dataset, [], self.root).run
        return partial(pipelines.update, self.latest, dataset, [], self.root)

    def check(self) -> None:
        """Raises UserError if the updated dataset has one of the texts."""
        if self._holds_below(self.latest / "dataset"):
            raise UserError(
                f"{self.latest / 'dataset'} has them again: of queries that were written, forget the passages"
            )

    def withdraw_versions(self, affected: Mapping[Path, Manifest]) -> None:
        """Deletes registered versions of bundles with the texts; the bundle in `latest/` takes a champion's place."""
        digests = {manifest.digest for manifest in affected.values() if manifest.schema == "bundle"}
        for uri in stores(self.root):
            with impatient():
                for registry in registries(uri):
                    versions = registry.versions()
                    gone = [
                        one
                        for one in versions
                        if one.tags.get(DIGEST) in digests or Path(one.tags.get(ADDRESS) or "/") in affected
                    ]
                    if champion := next((one for one in gone if CHAMPION in one.aliases), None):
                        registry.promote(self._successor(registry, champion, versions))
                    for version in gone:
                        registry.withdraw(version.number)
                        self.deleted.append(f"models:/{registry.name}/{version.number}")
                        if is_remote(address := version.tags.get(ADDRESS, "")):
                            self.left.append(address)
            if uri != own_store(self.root):
                self.left.append(f"reports of earlier runs in {without_password(uri)}")

    def _successor(self, registry: Registry, champion: Version, versions: Sequence[Version]) -> str:
        bundle, former = Bundle.read((self.latest / BUNDLE).resolve()), champion.tags.get(ADDRESS, "")
        digest, address = bundle.manifest.digest, str(bundle.path)
        if known := next((version.number for version in versions if version.tags.get(DIGEST) == digest), ""):
            return known
        reason = f"version {champion.number} without forgotten texts; not measured"
        tags = {name: value for name, value in champion.tags.items() if name == QUERIES}
        tags |= {DIGEST: digest, DECISION: "forget", REASON: reason}
        if is_remote(former):
            address = f"{former.rpartition('/')[0]}/{digest}"
            put_folder(bundle.path, address, Transfer(f"sending {bundle.path}"))
        with addressed(registry.uri), mlflow_runs.reaching(registry.uri) as client:
            run = mlflow_runs.create_run(client, mlflow_runs.experiment_id(client), pipelines.dated("forget"))
            named = Registry(client, registry.uri, registry.name, run)
            model = named.log_model(bundle, address, {}, read_manifest(self.latest / "dataset"))
            number = named.register(address, tags, {}, reason, model)
            client.set_terminated(run)
        return number

    def _in(self, pattern: str) -> Iterator[Path]:
        """Yields what is in a folder of the root, and not what a link in its place leads to."""
        linked = (self.root / pattern.partition("/")[0]).is_symlink()
        return iter(()) if linked else self.root.glob(pattern)

    def clean_files(self, affected: Mapping[Path, Manifest]) -> None:
        """Takes the texts out of caches, logs and MLflow's copies of files."""
        root, traces = self.root, Traces(self.texts)
        linked = [path for name in (*PROGRAMS, KEPT_LABELS) if (path := root / name).is_symlink()]
        self.left += map(str, linked)  # outside of the root may be files of others
        gone = [*leftovers(root), *self._in("tokens/*")]
        gone += [path for path in self._in("checkpoints/*") if OF_CALL.fullmatch(path.name)]
        gone += [path for path in self._in(f"{KEPT_LABELS}/*") if self._holds(path)]
        gone += [
            path for path in cache_folder().glob("*") if re.fullmatch("[0-9a-f]{32}", path.name) and traces.below(path)
        ]
        for path in self._in("artifacts/*/artifacts/*"):
            if (path.name in OF_QUERIES and path.stat().st_mtime < self.began) or traces.below(path):
                gone.append(path)
        self._delete(gone)
        self.rewritten += [
            str(path) for path in sorted(self._in("logs/*")) if path.is_file() and traces.without_lines(path)
        ]
        written = [
            path for path in artifacts_in(root / "pipeline") if (path / WRITTEN).is_file() and path not in affected
        ]
        answers = {answer for path in written for answer in WrittenQueries.read(path).answer}
        journals = self._in(f"checkpoints/answers-*/{JOURNAL}") if self._passages(root / "pipeline") else ()
        self.rewritten += [str(path) for path in journals if without_answers(path, answers)]
        self.rewritten += [str(path) for path in self._in("checkpoints/paid-*") if without_vectors(path, self.texts)]

    def delete_artifacts(self, affected: Mapping[Path, Manifest]) -> None:
        """Deletes what was made from the texts, but for weights in `latest/`, and what `labels undo` would restore."""
        for link in bundles_of(self.latest):
            if link.is_symlink() and link.with_name(FOLDER).is_dir():
                with Versions(link) as versions:
                    versions.keep_present()
        linked = {path.resolve() for path in self.latest.rglob("*") if path.is_symlink()}
        gone = [
            path
            for path, manifest in affected.items()
            if path.resolve() not in linked or manifest.schema not in OF_STATE
        ]
        self._delete(sorted(gone, key=lambda path: affected[path].schema == "dataset"))
        for link in self.latest.rglob("*"):
            if link.is_symlink() and not link.exists():
                link.unlink()

    def _delete(self, paths: Sequence[Path]) -> None:
        below = self.root / "pipeline"
        outputs = {path for path in paths if path.is_relative_to(below) and not path.name.startswith(".")}
        remove(Unneeded(OUTPUTS if path in outputs else PARTS, path) for path in paths)
        self.deleted += [str(path) for path in paths]

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
        if (settings := self.root / FORGOTTEN).with_name(SETTINGS).is_file():
            words += ["--preset", str(settings.with_name(SETTINGS))]
        if rung := rung_of(self.latest):
            words += ["--until", rung.replace(" ", "-")]
        return shlex.join(words)


def forget(
    root: Path,
    wanted: Mapping[str, set[str]],
    exports: Sequence[Path],
    signed: str,
    run: Callable[[Callable[[Show], Outcome]], Outcome],
    dataset: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Forgets texts in a root and its exports; returns the record's file, and the record.

    Args:
        wanted: ids or whole texts of "queries" and "passages".
        exports: as `renewed` takes them.
        signed: who signs the record; empty: this user on this machine.
        run: runs the update, and raises if it fails.
        dataset: the data, if they have moved since the run.

    Raises:
        UserError: a name of nothing; or the update or an export fails. Then what has the texts is still there, and the
            same command goes on.
    """
    root = root.resolve()
    check_root(root)
    file = root / FORGOTTEN
    job = Forgetting(root, Forgotten.read(file) if file.exists() else Forgotten())
    job.find(wanted)
    job.note_datasets()
    job.take_labels_out()
    if (settings := root / "latest" / "report" / SETTINGS).is_file():
        shutil.copyfile(settings, file.with_name(SETTINGS))
    if update := job.update(dataset):
        run(update)
        job.check()
        job.rewritten += [str(place) for place in bundles_of(root / "latest")]
    with lifeline.take(root):
        affected = job.affected()
        job.withdraw_versions(affected)
        traces = Traces(job.texts)
        job.rewritten += [str(target) for target in exports if renewed(target, root / "latest", traces)]
        edited = (target for target in exports if target.is_file() or (target / POOL).is_file())
        job.left += [str(target) for target in edited if traces.below(target, short=True)]
        job.clean_files(affected)
        job.delete_artifacts(affected)
        apart = [path for path in sorted(root.rglob("*")) if not path.is_relative_to(root / "pipeline")]
        if (data := root / "latest" / "dataset").exists():
            manifest = read_manifest(data)
            job.left += [known] if (known := manifest.metrics.get("forgotten")) else []
            read = [Path(name) for setting in DATA if (name := manifest.settings.get(setting))]
            apart += [path for path in read if not path.is_relative_to(root)]
        job.left += [str(path) for path in apart if path.is_file() and traces.in_file(path, short=True)]
    trained = job.trained()
    record = {
        "began": _utc(job.began), "ended": _utc(time.time()),
        "signed": signed or f"{getpass.getuser()}@{socket.gethostname()}",
        "version": __version__, "salt": job.forgotten.salt,
        **{kind: sorted(getattr(job.forgotten, kind)) for kind in wanted},
        "rewritten": job.rewritten, "deleted": job.deleted,
        "trained": trained, "training": job.training() if trained else "", "left": job.left,
    }  # fmt: skip
    record["digest"] = digest_of(record)
    path = file.with_name(f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(job.began))}.json")
    path.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return path, record


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
