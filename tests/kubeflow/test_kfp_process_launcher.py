"""The launcher of the tests, which plays KFP's driver and launcher, runs real packages of tiny steps as KFP would."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl
from kfp_process_launcher import PackageRun, ReadyTask, run_processes

SAY = (
    "import json, pathlib, sys\n"
    "given = json.loads(sys.argv[1])\n"
    "read = [i['artifacts'][0]['uri'] for i in given['inputs']['artifacts'].values()]\n"
    "texts = [pathlib.Path(each).read_text() for each in read]\n"
    "word = given['inputs']['parameterValues']['word']\n"
    "if word == 'fail': sys.exit('the word is wrong')\n"
    "for output in given['outputs']['artifacts'].values() if word != 'silent' else ():\n"
    "    pathlib.Path(output['artifacts'][0]['uri']).write_text('+'.join([*texts, word]))\n"
    "told = {'artifacts': {'said': {'artifacts': [{'metadata': {'letters': len(word)}}]}}}\n"
    "pathlib.Path(given['outputs']['outputFile']).write_text(json.dumps(told))\n"
)


@dsl.container_component
def begin(word: str, said: dsl.Output[dsl.Artifact]):  # type: ignore[no-untyped-def]
    return dsl.ContainerSpec(image="a", command=["python3", "-c", SAY], args=["{{$}}"])


@dsl.container_component
def add(before: dsl.Input[dsl.Artifact], said: dsl.Output[dsl.Artifact], word: str = "three"):  # type: ignore[no-untyped-def]
    return dsl.ContainerSpec(image="b", command=["python3", "-c", SAY], args=["{{$}}"])


def compiled(folder: Path, pipeline: Any) -> Path:
    compiler.Compiler().compile(pipeline, str(folder / "package.yaml"))
    return folder / "package.yaml"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "given").write_text("zero")

    @dsl.pipeline(name="words")
    def words(first: str = "one") -> None:
        begun = begin(word=first).set_env_variable("A", "b")
        more = add(before=begun.output, word="two")
        add(before=more.output)
        imported = dsl.importer(artifact_uri=str(tmp_path / "given"), artifact_class=dsl.Artifact).output
        add(before=imported, word="after all").after(more)

    return compiled(tmp_path, words)


def test_tasks_read_parameters_and_what_others_wrote(package: Path, tmp_path: Path) -> None:
    run = run_processes(package, tmp_path / "root")
    said = {task: Path(run.uri(task, "said")).read_text() for task, output in run.artifacts if output == "said"}
    assert said == {"begin": "one", "add": "one+two", "add-2": "one+two+three", "add-3": "zero+after all"}
    assert [run.artifacts[task, "said"]["metadata"] for task in ("begin", "add-2")] == [{"letters": 3}, {"letters": 5}]
    again = run_processes(package, tmp_path / "again", first="1")
    assert Path(again.uri("add", "said")).read_text() == "1+two"
    with pytest.raises(ValueError, match="no parameter second"):
        run_processes(package, tmp_path / "root", second="2")


def test_a_task_runs_after_those_that_it_waits_for_with_its_image_and_environment(package: Path) -> None:
    seen: list[ReadyTask] = []
    run = PackageRun(package, "s3://bucket/root")
    order = [name for name in run.tasks(seen.append) if name != "importer"]
    assert order == [task.name for task in seen]
    assert order.index("begin") < order.index("add") < min(order.index("add-2"), order.index("add-3"))
    by_name = {task.name: task for task in seen}
    assert (by_name["begin"].image, by_name["begin"].environment) == ("a", {"A": "b"})
    assert by_name["add"].inputs == ["s3://bucket/root/begin/said"] == by_name["begin"].outputs


@pytest.mark.parametrize(("word", "message"), [("fail", "exit code 1: the word is wrong"), ("silent", "wrote no ")])
def test_a_failed_task_ends_the_run(word: str, message: str, package: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"begin .*{message}"):
        run_processes(package, tmp_path / "root", first=word)


def test_what_it_cannot_do_as_kfp_does_is_refused(tmp_path: Path) -> None:
    @dsl.container_component
    def show(word: str):  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="a", command=[sys.executable, "-c", "0"], args=[word])

    @dsl.pipeline(name="words")
    def words() -> None:
        show(word="one")

    package = compiled(tmp_path, words)
    with pytest.raises(ValueError, match=r"only \{\{\$\}\} is replaced, not \{\{\$\.inputs"):
        run_processes(package, tmp_path / "root")
    spec = yaml.safe_load(package.read_text())
    spec["root"]["dag"]["tasks"]["show"]["dependentTasks"] = ["show"]
    package.write_text(yaml.safe_dump(spec))
    with pytest.raises(ValueError, match="show wait for each other"):
        run_processes(package, tmp_path / "root")
