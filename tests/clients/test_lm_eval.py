"""lm-eval, unmodified, against a server: every answer and every verdict are those of `lopa-export bench --quality`."""

import json
from pathlib import Path

import pytest
from tests.clients.installed import HERE, PYTHON, ended, no_python
from tests.serve.servers import Server

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl, is_correct
from lopa.bench.quality.measure import measure_from_results, variant_config
from lopa.bench.quality.variants import VARIANTS
from lopa.runtime import Decoder
from lopa.tiny import EVAL

QUESTIONS = 24
NO_TOKENIZER = "tokenizer_backend=None,tokenized_requests=False,"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.clients
@no_python
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_answers_and_scores_are_those_of_the_benchmark(
    path: str, server: Server, decoder: Decoder, tmp_path: Path
) -> None:
    items = [item for item in eval_set_from_jsonl(EVAL, limit=QUESTIONS) if item.kind == SCORED_KIND]
    fields = [{"prompt": item.prompt, "answer": item.answer} for item in items]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(each) + "\n" for each in fields))
    (variant,) = (each for each in VARIANTS if each.name == "lopa-4")  # what the task's file asks for
    config = variant_config(decoder, variant, published=False)
    results = [result for item in items for result in decoder.generate([item.prompt], config)]
    score = measure_from_results(items, results).score
    assert score is not None
    assert 0 < score.share < 1, "or a verdict says nothing"

    chat = path != "completions"
    model, options = ("local-chat-completions", "") if chat else ("local-completions", NO_TOKENIZER)
    task = "tiny_chat" if chat else "tiny_completions"
    arguments = f"{options}model=tiny,base_url={server.url}/v1/{path},num_concurrent=4,max_retries=1"
    command = [str(PYTHON.with_name("lm-eval")), "run", "--model", model, "--model_args", arguments, "--tasks", task]
    command += ["--include_path", str(HERE / "lm_eval"), "--log_samples", "--output_path", "out"]
    command += ["--apply_chat_template"] if chat else []
    environment = {"HF_HOME": str(tmp_path / "hf"), "OPENAI_API_KEY": "none", **OFFLINE}
    done = ended(command, tmp_path, environment)
    assert done.returncode == 0, done.stdout
    (samples,) = tmp_path.glob(f"out/*/samples_{task}_*.jsonl")
    found = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda each: each["doc_id"])
    assert [each["resps"] for each in found] == [[[result.text]] for result in results]
    verdicts = [is_correct(result.text, item.answer) for item, result in zip(items, results, strict=True)]
    assert [each["exact_match"] == 1 for each in found] == verdicts
    (told,) = tmp_path.glob("out/*/results_*.json")
    assert json.loads(told.read_text())["results"][task]["exact_match,last-number"] == score.share
