"""Former spellings of benchmarks: each is rejected with the command line that replaces it."""

import pytest
from tests.cli.command import lopa_export


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("bench B --quality E.jsonl --limit 3 --resume", "bench quality B E.jsonl --limit 3 --resume"),
        ("bench --quality=E.jsonl B --output o", "bench quality B E.jsonl --output o"),
        ("bench B --speed --checkpoint C --lora L -q", "bench speed B --checkpoint C --lora L -q"),
        ("bench -v B --costs --device cuda:0", "bench costs B -v --device cuda:0"),
        ("bench B --decodes 1,2 --output o", "bench decodes B --branches 1,2 --output o"),
        ("bench B --cold", "bench cold B"),
        ("bench B --devices 1,2 --branches 8", "bench scaling B --devices 1,2 --branches 8"),
        ("bench B --costs --quality E.jsonl", "bench costs B"),
        ("bench --costs", "bench costs BUNDLE"),
        ("questions shuffle -o q.jsonl", "bench questions shuffle -o q.jsonl"),
        ("simulate s.json --json", "bench simulate s.json --json"),
    ],
)
def test_a_former_spelling_is_answered_with_the_present_one(former: str, present: str) -> None:
    done = lopa_export(*former.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"Use: lopa-export {present}\n")


@pytest.mark.parametrize("arguments", ["bench B", "bench qualty B E.jsonl", "bench B --limit 3"])
def test_an_unknown_benchmark_is_answered_with_the_known_ones(arguments: str) -> None:
    done = lopa_export(*arguments.split())
    assert done.returncode == 2
    assert "Subcommands: quality, speed, costs, decodes, cold, scaling, questions, simulate." in done.stderr
