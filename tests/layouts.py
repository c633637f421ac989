"""Folders in the layouts of MS MARCO and of DPR."""

import json
from pathlib import Path


def write_msmarco(folder: Path) -> Path:
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f'{i}\tpassage "{i}"\n' for i in range(40)))
    for name, numbers in (("train", range(30)), ("dev", range(30, 38)), ("dev.small", range(30, 35))):
        (folder / f"queries.{name}.tsv").write_text("".join(f"{q}\tquery {q}\n" for q in numbers))
        (folder / f"qrels.{name}.tsv").write_text("".join(f"{q}\t0\t{q}\t1\n" for q in numbers))
    return folder


def write_dpr(folder: Path) -> Path:
    (folder / "qas").mkdir(parents=True)
    (folder / "psgs_w100.tsv").write_text(
        'id\ttext\ttitle\n1\t"It said ""one"" and two"\tFirst\n2\tplain text\t"A ""B"""\n3\tthird\tC\n'
    )
    context = {"title": "First", "text": "…", "score": 1000}
    training = [
        {"question": "who said one", "answers": ["one"], "positive_ctxs": [{**context, "passage_id": "1"}],
         "negative_ctxs": [{**context, "passage_id": "3"}], "hard_negative_ctxs": []},
        {"question": "what is plain", "answers": ["text"], "positive_ctxs": [{**context, "psg_id": 2}],
         "negative_ctxs": [], "hard_negative_ctxs": [{**context, "psg_id": 1}]},
    ]  # fmt: skip
    (folder / "biencoder-nq-train.json").write_text(json.dumps(training, indent=2))
    (folder / "biencoder-nq-dev.json").write_text(
        json.dumps([{"question": "which is third", "answers": [], "positive_ctxs": [{"psg_id": "3"}]}])
    )
    (folder / "qas" / "nq-dev.qa.csv").write_text("which is third\t['third', '3rd']\nunlabelled one\t['x']\n")
    (folder / "qas" / "nq-test.qa.csv").write_text(
        """who is it\t['Wilhelm Conrad', "O'Neill"]\nwhat now\t"[""now""]"\n"""
    )
    return folder
