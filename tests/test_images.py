"""What goes into an image: one FAISS, no CUDA library twice; CI builds it. A cluster's file asks what it answers."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from required import missing
from typer.main import get_command

from gnn_encoder import __version__
from gnn_encoder.cli.app import app
from gnn_encoder.cli.serving import DRAIN, TOKEN
from gnn_encoder.data import file_reader
from gnn_encoder.engines.provenance import package_digest
from gnn_encoder.serving.draining import LAST_REQUESTS
from gnn_encoder.serving.guard import OPEN

PROJECT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("packages", PROJECT / "images" / "packages.py")
assert spec is not None and spec.loader is not None
packages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(packages)

FAISS = [("faiss_gpu", "1.15.1"), ("nvidia_cublas_cu12", "12.6.4.1"), ("nvidia_cuda_runtime_cu12", "12.6.77")]


def test_the_gpus_image_has_the_gpus_builds_in_the_place_of_the_cpus() -> None:
    cpu, gpu = packages.wanted("cpu"), packages.wanted("gpu")
    assert {"torch", "faiss-cpu"} == set(cpu) - set(gpu)
    assert sorted(name.partition("==")[0] for name in set(gpu) - set(cpu)) == ["faiss-gpu", "torch"]


def test_the_steps_images_have_the_readers_of_all_documents_and_the_server_s_has_none() -> None:
    """A package that a reader imports and the image lacks would leave out each file of that kind, without an error."""
    source = ast.parse(Path(file_reader.__file__).read_text("utf-8"))
    lazily = [node for function in source.body if isinstance(function, ast.FunctionDef) for node in ast.walk(function)]
    imported = {alias.name for node in lazily if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.partition(".")[0] for node in lazily if isinstance(node, ast.ImportFrom) and node.module}
    readers = imported - set(sys.stdlib_module_names)
    assert readers == {"markitdown", "pypdfium2"}
    of = {
        target: {re.split(r"[\[=]", name)[0] for name in packages.wanted(target)} for target in ("cpu", "gpu", "serve")
    }
    assert readers <= of["cpu"] and readers <= of["gpu"] and of["serve"] == of["cpu"] - readers - {"gensim", "pysbd"}
    (office,) = (name for name in packages.wanted("cpu") if name.startswith("markitdown"))
    assert office == "markitdown[docx,pptx]", "without these extras it refuses DOCX and PPTX"


def test_a_library_of_two_versions_of_cuda_is_refused() -> None:
    assert packages.problems([*FAISS, ("nvidia_cudnn_cu12", "9.10.2.21"), ("nvidia_nccl_cu12", "2.29.7")]) == []
    # As PyPI's own torch would have it: built for CUDA 13, whose packages name no version.
    (wrong,) = packages.problems([*FAISS, ("nvidia_cublas", "13.1.1.3")])
    assert wrong == "a CUDA library twice: nvidia-cublas 13.1.1.3, nvidia-cublas-cu12 12.6.4.1"


def test_two_builds_of_faiss_or_none_are_refused() -> None:
    assert "faiss-cpu, faiss-gpu" in packages.problems([*FAISS, ("faiss_cpu", "1.15.1")])[0]
    assert "nothing" in packages.problems([("torch", "2.13.0")])[0]


def test_a_wheel_has_every_module_and_file_also_from_an_archive_of_the_source(tmp_path: Path) -> None:
    try:
        from hatchling.builders.sdist import SdistBuilder
        from hatchling.builders.wheel import WheelBuilder
    except ImportError:
        missing("no hatchling, which builds this package")

    def wheel(source: Path, folder: Path) -> set[str]:
        (path,) = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
        return {name for name in zipfile.ZipFile(path).namelist() if name.startswith("gnn_encoder/")}

    (archive,) = SdistBuilder(str(PROJECT)).build(directory=str(tmp_path))
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    direct = wheel(PROJECT, tmp_path / "direct")
    assert {"gnn_encoder/pipelines/train.py", "gnn_encoder/pipelines/presets/quickstart.yaml"} <= direct
    assert wheel(tmp_path / f"gnn_encoder-{__version__}", tmp_path / "indirect") == direct


def test_ci_builds_the_image_and_runs_the_tests() -> None:
    jobs = yaml.safe_load((PROJECT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step} == {
        ".ci/run",
        "make images",
    }
    assert "make test" in (PROJECT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_the_build_asks_the_package_for_its_version_and_source() -> None:
    (program,) = re.findall(r"'(from gnn_encoder [^']+)'", (PROJECT / "images" / "build").read_text())
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [__version__, package_digest()]


def test_the_deployment_asks_the_server_what_it_answers() -> None:
    deployment, service = yaml.safe_load_all((PROJECT / "docs" / "serve.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"gnn-encoder-python:{__version__}-serve"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN and container[probe]["httpGet"]["port"] == "http"
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == "/metrics"
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause + LAST_REQUESTS + DRAIN
    assert TOKEN in {entry_of["name"] for entry_of in container["env"]}
    image = (PROJECT / "images" / "Containerfile").read_text()
    (entry,) = (json.loads(line.removeprefix("ENTRYPOINT ")) for line in image.splitlines() if "ENTRYPOINT" in line)
    options = {entry_of.opts[0] for entry_of in get_command(app).commands["serve"].params}
    assert entry[:2] == ["gnn-encoder", "serve"]
    assert {entry_of for entry_of in (*entry[2:], *container["args"]) if entry_of.startswith("--")} <= options
