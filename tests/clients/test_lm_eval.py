"""Unmodified lm-eval against a server.

Answers and scores equal the results of `lopa-export bench quality`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.bench.test_data_sets import RECORDS
from tests.clients.installed import HERE, PYTHON, no_python, run_client
from tests.serve.servers import Server

from lopa.bench.comparison.outcomes import outcome_from_result
from lopa.bench.comparison.quality_figures import measure_from_outcomes
from lopa.bench.comparison.quality_run import variant_config
from lopa.bench.comparison.variants import VARIANTS
from lopa.bench.data_sets import lines_of_data_set
from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl, is_correct
from lopa.runtime import Decoder
from lopa.tiny import EVAL

QUESTIONS = 24
NO_TOKENIZER = "tokenizer_backend=None,tokenized_requests=False,"
HEAD = ["Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"]
"""Heads of lm-eval's table of results."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Expected:
    """Expected answers, verdicts and score."""

    texts: list[str]
    verdicts: list[bool]
    score: float


@pytest.fixture(scope="module")
def items() -> list[EvalItem]:
    return [item for item in eval_set_from_jsonl(EVAL, limit=QUESTIONS) if item.kind == SCORED_KIND]


@pytest.fixture(scope="module")
def expected(items: list[EvalItem], decoder: Decoder) -> Expected:
    (variant,) = (each for each in VARIANTS if each.name == "lopa-4")  # the task file requests this variant
    config = variant_config(decoder, variant)
    results = [result for item in items for result in decoder.generate([item.prompt], config)]
    outcomes = [outcome_from_result(item, result) for item, result in zip(items, results, strict=True)]
    score = measure_from_outcomes(outcomes).score
    assert score is not None
    assert 0 < score.share < 1, "otherwise the verdicts prove nothing"
    verdicts = [is_correct(result.text, item.answer) for item, result in zip(items, results, strict=True)]
    return Expected([result.text for result in results], verdicts, score.share)


@pytest.fixture
def folder(items: list[EvalItem], tmp_path: Path) -> Path:
    """Return the folder in which lm-eval runs and from which its tasks read their questions."""
    fields = [{"prompt": item.prompt, "answer": item.answer} for item in items]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(each) + "\n" for each in fields))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {"HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "none", **OFFLINE}


def samples(command: list[str], task: str, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run lm-eval and return its samples in order, and its results."""
    options = ["--tasks", task, "--include_path", str(HERE / "lm_eval"), "--log_samples", "--output_path", "out"]
    done = run_client([*command, *options], folder, environment(folder))
    assert done.returncode == 0, done.stdout
    assert HEAD in [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    (kept,) = folder.glob(f"out/*/samples_{task}_*.jsonl")
    (results_file,) = folder.glob("out/*/results_*.json")
    found = sorted(map(json.loads, kept.read_text().splitlines()), key=lambda each: each["doc_id"])
    return found, json.loads(results_file.read_text())


def lm_eval_command(server: Server, path: str = "completions") -> list[str]:
    """Return lm-eval's command with its own model for a server, and a seed of its own for each request."""
    chat = path != "completions"
    model, options = ("local-chat-completions", "") if chat else ("local-completions", NO_TOKENIZER)
    arguments = f"{options}model=tiny,base_url={server.url}/v1/{path},num_concurrent=4,max_retries=1,seed=-1"
    command = [str(PYTHON.with_name("lm-eval")), "run", "--model", model, "--model_args", arguments]
    return [*command, "--apply_chat_template"] if chat else command


@pytest.mark.clients
@no_python
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_answers_and_scores_equal_the_benchmark_s(path: str, server: Server, expected: Expected, folder: Path) -> None:
    task = "tiny_completions" if path == "completions" else "tiny_chat"
    found, results_file = samples(lm_eval_command(server, path), task, folder)
    assert [each["resps"] for each in found] == [[[text]] for text in expected.texts]
    assert [each["exact_match"] == 1 for each in found] == expected.verdicts
    assert results_file["results"][task]["exact_match,last-number"] == expected.score


OF_TASKS = """
import json, pathlib, sys
import lm_eval.tasks, yaml
from lm_eval.utils import apply_template

class Loader(yaml.SafeLoader):
    pass

Loader.add_multi_constructor("!", lambda loader, suffix, node: None)  # functions that score: not needed
docs, found = json.loads(sys.argv[1]), {}
for name, doc in docs.items():
    path = pathlib.Path(lm_eval.tasks.__file__).with_name(name) / f"{name}.yaml"
    task = yaml.load(path.read_text(), Loader)
    until = task["generation_kwargs"]["until"]
    found[name] = {"prompt": apply_template(task["doc_to_text"], doc), "stop": until}
    found[name]["shot"] = apply_template(task["doc_to_target"], {**doc, "is_fewshot": 1})
print("FOUND" + json.dumps(found))
"""


@pytest.mark.clients
@no_python
def test_published_prompts_equal_the_tasks_prompts(tmp_path: Path) -> None:
    """Compare prompts, stops and examples of lopa.bench.data_sets with lm-eval's task files."""
    docs = {**RECORDS, "mbpp": {**RECORDS["mbpp"], "test_list": ["assert 1", "assert 2", "assert 3"]}}
    done = run_client([str(PYTHON), "-c", OF_TASKS, json.dumps(docs)], tmp_path, environment(tmp_path))
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.split("FOUND")[1].splitlines()[0])
    for name, doc in docs.items():
        (line,) = lines_of_data_set(name, [doc], [])
        assert (line["prompt"], line["stop"]) == (found[name]["prompt"], found[name]["stop"])
        if name != "humaneval":  # humaneval has no examples
            assert line["answer"] == found[name]["shot"]
