"""What a question to a bundle of the labels rung costs over HTTP, as a multiple of plain hybrid search's.

Reads a finished climb: the untouched hybrid is the bundle of the rung "as it is", the others are the fusions in
`latest/bundles`. One server for each bundle; `--clients` clients ask all of them in turn, block by block, because the
speed of a virtual machine changes within seconds; then one client does.

    python benchmarks/serve_ladder.py --root ROOT [--clients 64] [--seconds 60]
"""

import argparse
import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from common import show
from serve import load, questions_of, started

from gnn_encoder.artifacts import Bundle

BLOCKS = 6
"""Blocks of one round, each with its share of the seconds."""
HYBRID = "choose-bundle-as-it-is/chosen_bundle"


def bundles_of(root: Path) -> dict[str, Path]:
    """The hybrid first, then the fusions of a climb in `root`."""
    hybrids = sorted(root.glob(f"pipeline/*/{HYBRID}"))
    if not hybrids:
        raise SystemExit(f"{root} has no climb up to the labels rung: gnn-encoder run --until labels --root {root}")
    fusions = sorted(path for path in (root / "latest/bundles").iterdir() if "fusion" in path.name)
    paths = [hybrids[-1], *fusions]
    return {Bundle.read(path).serving.system or Bundle.read(path).system: path for path in paths}


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("gnn-encoder-runs"))
    for name, default in (("clients", 64), ("seconds", 60), ("port", 8750)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    bundles = bundles_of(o.root)
    questions = questions_of(Bundle.read(next(iter(bundles.values()))))
    program = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()", "serve", "--bundle"]
    rate = np.zeros((BLOCKS, len(bundles)))
    alone = np.zeros_like(rate)
    wrong = 0
    with ExitStack() as servers:
        for number, path in enumerate(bundles.values()):
            command = [*program, str(path), "--port", str(o.port + number)]
            process = servers.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            servers.callback(process.terminate)
            asyncio.run(started(o.port + number, process))
        for block in range(-1, BLOCKS):  # the first finds cold caches
            for number in range(len(bundles)):
                took, errors = asyncio.run(load(o.port + number, questions, o.clients, o.seconds / BLOCKS))
                single, more = asyncio.run(load(o.port + number, questions, 1, o.seconds / BLOCKS / 4))
                rate[block, number], alone[block, number] = len(took) / (o.seconds / BLOCKS), np.median(single)
                wrong += errors + more
    rows = []
    for number, name in enumerate(bundles):
        of_time, of_rate = alone[:, number] / alone[:, 0], rate[:, number] / rate[:, 0]
        figures = (1000 * np.median(alone[:, number]), np.median(of_time), np.median(rate[:, number]))
        rows.append([name, *(f"{value:.{places}f}" for value, places in zip(figures, (1, 2, 0), strict=True))])
        rows[-1].append(f"{np.median(of_rate):.2f}")
    headings = ("bundle", "alone, ms", "of the hybrid's", f"questions/s, {o.clients} clients", "of the hybrid's")
    show(f"medians of {BLOCKS} blocks; {wrong} errors", headings, rows)


if __name__ == "__main__":
    main()
