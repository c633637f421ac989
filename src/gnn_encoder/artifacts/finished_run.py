"""The bundles in the folder of a finished run, such as ROOT/latest.

ROOT/latest/bundle is the bundle that the run recommends, and ROOT/latest/bundles/NAME is each system's.
"""

import re
from pathlib import Path

from gnn_encoder.artifacts.bundle import Bundle
from gnn_encoder.artifacts.dataset import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.settings.systems import GNN_ENCODER, fusion_systems

BUNDLE, BUNDLES = "bundle", "bundles"
"""Names in the folder of a finished run: the recommended bundle, and the folder with the bundle of each system."""


def place_of(system: str) -> str:
    """Returns the place of a system's bundle in the folder of a finished run: `bundles/query_sum`."""
    return f"{BUNDLES}/{re.sub(r'[^a-z0-9]+', '_', system.lower()).strip('_')}"


def check_place(root: Path) -> None:
    """Refuses a root that was moved: its cache, links and registered versions name the old place.

    Raises:
        UserError: a link in ROOT/latest leads out of the root, to where nothing is.
    """
    for link in sorted((root / "latest").glob("*")):
        target = link.parent / link.readlink() if link.is_symlink() else link
        if not link.exists() and not target.is_relative_to(root.resolve()):
            raise UserError(
                f"{link} leads to {target}, where nothing is: if the runs were there, move them back, else run again "
                "here, which makes the links anew"
            )


def bundles_of(run: Path) -> list[Path]:
    """Returns the folders of all bundles of a finished run, the recommended one first."""
    folders = [run / BUNDLE, *sorted((run / BUNDLES).glob("[!.]*"))]
    return [folder for folder in folders if folder.exists()]


def run_folder(bundle: Path) -> Path:
    """Returns the folder of a finished run that a bundle's path is in; links are not resolved."""
    beside = bundle.absolute().parent
    return beside.parent if beside.name == BUNDLES else beside


def graph_bundle(run: Path) -> Path:
    """Returns the place of the GNN-encoder's bundle of a finished run, which a run without a training lacks."""
    return run / place_of(GNN_ENCODER)


def labelled_bundle(run: Path) -> Path:
    """Returns the bundle of a finished run that takes labels: the recommended one, unless it is a plain dual encoder's.

    Then it is the GNN-encoder's, or a fusion's if the run trained nothing. It is also that one if labels were added to
    or removed from it alone since the run read the data: the next run reads them.
    """
    chosen, graph = run / BUNDLE, graph_bundle(run)
    if not graph.exists():
        fused = [run / place_of(system) for kind in (False, True) for system in fusion_systems(as_it_is=kind).values()]
        graph = next((bundle for bundle in reversed(fused) if bundle.exists()), chosen)
    if not chosen.exists():
        return graph
    bundle = Bundle.read(chosen)
    if bundle.system == GNN_ENCODER:
        return chosen
    elsewhere = _has_own_labels(run, graph) and not _has_own_labels(run, chosen)
    return graph if elsewhere or not bundle.labels_path else chosen


def _has_own_labels(run: Path, bundle: Path) -> bool:
    """Whether labels were added to or removed from a bundle since its run read the data."""
    added = Bundle.read(bundle).added if bundle.exists() else None
    read = Dataset(run / "dataset").added if (run / "dataset").exists() else []
    return added is not None and added.labels != read
