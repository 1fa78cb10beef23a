"""How lines of OpenAI's batch files are answered."""

from lopa.cli.batch.openai_answer import OpenAIAnswers, identity_of_openai_answer
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult

LINE = {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "2 + 2?"}]}}


def test_an_answer_tells_which_line_it_is_for() -> None:
    answers = OpenAIAnswers(RawLine(12, b"", "abc"), LINE, "bundle", str)
    result = GenerationResult((1, 2), (5, 6), "text", 1, 2, 2, 2.0, "length", 0.5, logprobs=(-0.5, float("nan")))
    good, bad = answers.of_result(result), answers.of_error(BadInputError("x", expected="y", remedy="z"))
    assert identity_of_openai_answer(good) == identity_of_openai_answer(bad) == (12, "abc")
    body = good["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "bundle")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "text", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-0.5, None]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    for other in ({"id": "batch_req_x_y", "custom_id": ""}, {"id": 5}, {"line": 1}):
        assert identity_of_openai_answer(other) is None
