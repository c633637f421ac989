"""Withdraws registered versions of bundles with forgotten texts, and puts others in their champions' places."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import BUNDLE
from gnn_encoder.artifacts.folder import Manifest, read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines import forgotten_stores, pipelines, prune
from gnn_encoder.engines.forgotten_stores import Note
from gnn_encoder.promotion.registry import BUNDLE as ADDRESS
from gnn_encoder.promotion.registry import (
    CHAMPION,
    DATASET,
    DECISION,
    DIGEST,
    QUERIES,
    REASON,
    SOURCE,
    Registry,
    Version,
)
from gnn_encoder.storage import Transfer, is_remote, put_folder
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.pipeline_run import addressed, impatient

Artifacts = Mapping[Path, Manifest]


def withdraw_versions(
    uris: Sequence[str],
    root: Path,
    artifacts: Artifacts,
    affected: Artifacts,
    moves: Sequence[Mapping[str, str]],
    note: Note,
) -> None:
    """Deletes a root's registered versions of affected bundles, and the bundles' copies in object stores.

    The bundle in `latest/` takes the place of a champion of the same data.

    Args:
        uris: the tracking stores.
        artifacts: all of the root, and `affected` those with the texts.
        moves: what the attempts have updated: {"from": address of the data, "to": the new one, "digest": of the data}.
        note: as `Forgetting.note`.
    """
    latest = root / "latest"
    digests = {manifest.digest for manifest in affected.values() if manifest.schema == "bundle"}
    decisions = [Decision.read(path).facts for path, of in artifacts.items() if of.schema == "decision"]
    addresses = {facts.get("bundle", "") for facts in decisions if facts.get("bundle_digest") in digests}
    withdrawn: list[tuple[Registry, Version]] = []
    for registry in (registry for uri in uris for registry in prune.registries(uri, root)):
        with impatient():
            versions = registry.versions()
            gone = [
                version
                for version in versions
                if version.tags.get(DIGEST) in digests or Path(version.tags.get(ADDRESS) or "/") in affected
            ]
            if champion := next((version for version in gone if CHAMPION in version.aliases), None):
                if _is_of_latest(champion, latest, artifacts, affected, moves):
                    registry.promote(_successor(latest, registry, champion, versions))
                else:
                    note("deleted", f"models:/{registry.name}@{CHAMPION}")
        withdrawn += [(registry, version) for version in gone]
    addresses.update(version.tags.get(ADDRESS, "") for _, version in withdrawn)
    for address in sorted(filter(is_remote, addresses)):  # first, as only a version may still know its copy
        forgotten_stores.remove(address, note)
    for registry, version in withdrawn:
        with impatient():
            registry.withdraw(version.number)
        note("deleted", f"models:/{registry.name}/{version.number}")


def _is_of_latest(
    champion: Version, latest: Path, artifacts: Artifacts, affected: Artifacts, moves: Sequence[Mapping[str, str]]
) -> bool:
    """Whether a champion is of the data in `latest/`: by its tag, by its dataset, or if the root has no other."""
    if not (latest / "dataset").exists():
        return False
    data = read_manifest(latest / "dataset")
    source = data.settings.get("dataset", "")
    # An interrupted attempt may have updated to data that have moved.
    of_latest = {source, *(move["from"] for move in moves if source == move["to"] or data.digest == move["digest"])}
    if SOURCE in champion.tags:
        return champion.tags[SOURCE] in of_latest
    of_bundle = (one.inputs.get("dataset") for one in affected.values() if one.digest == champion.tags.get(DIGEST))
    digests, datasets = set(of_bundle), [one for one in artifacts.values() if one.schema == "dataset"]
    known = [one for one in datasets if one.digest in digests]
    return all(one.settings.get("dataset", "") in of_latest for one in known or datasets)


def _successor(latest: Path, registry: Registry, champion: Version, versions: Sequence[Version]) -> str:
    """Returns the number of the version with the bundle in `latest/`, which it registers if it is not."""
    bundle, former = Bundle.read((latest / BUNDLE).resolve()), champion.tags.get(ADDRESS, "")
    digest, address = bundle.manifest.digest, str(bundle.path)
    if known := next((version.number for version in versions if version.tags.get(DIGEST) == digest), ""):
        return known
    reason = f"version {champion.number} without forgotten texts; not measured"
    data = read_manifest(latest / "dataset")
    tags = {name: value for name, value in champion.tags.items() if name in (QUERIES, SOURCE)}
    tags |= {DATASET: data.digest, DIGEST: digest, DECISION: "forget", REASON: reason}
    if is_remote(former):
        address = f"{former.rpartition('/')[0]}/{digest}"
        put_folder(bundle.path, address, Transfer(f"sending {bundle.path}"))
    with addressed(registry.uri), mlflow_runs.reaching(registry.uri) as client:
        run = mlflow_runs.create_run(client, mlflow_runs.experiment_id(client), pipelines.dated("forget"))
        named = Registry(client, registry.uri, registry.name, run)
        number = named.register(address, tags, {}, reason, named.log_model(bundle, address, {}, data))
        client.set_terminated(run)
    return number
