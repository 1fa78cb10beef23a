"""Options that the application accepts and rejects, without Ray."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chat_bundles import with_chat_template

from lopa.runtime.chat.call_format import FORMATS
from lopa.runtime.errors import BadInputError
from lopa.serve.ray import app
from lopa.serve.ray.affinity import models_from_bundles
from lopa.serve.ray.ray_options import NamedBundle, options_from_args

PROJECT = Path(__file__).resolve().parents[3]
ONE = {"bundle": "/bundles/tiny"}


def test_options_are_texts_or_values() -> None:
    options = options_from_args({**ONE, "max_num_seqs": "3", "queue": "0", "replicas": "2", "api_keys": "keys"})
    assert (options.capacity, options.min_replicas, options.max_replicas) == (3, 2, 2)
    assert options.api_keys == Path.cwd() / "keys"
    assert options_from_args({**ONE, "tool_call_format": "llama3"}).call_format is FORMATS["llama3"]
    assert options_from_args(ONE).call_format is None


def test_derived_options() -> None:
    options = options_from_args({"bundle": "bundles/tiny", "min_replicas": 2, "cpus": 4, "devices": "cuda:0+cuda:1"})
    assert options.bundles == (NamedBundle(str(Path.cwd() / "bundles/tiny"), "tiny"),)
    assert (options.min_replicas, options.max_replicas, options.bundles_open) == (2, 2, 1)
    assert (options.threads, options.gpus) == (4, 2.0)
    assert options_from_args({**ONE, "cpus": 0.5}).threads == 1
    two_bundles = options_from_args({"bundles": ["/a/one", {"path": "/b/one", "model": "two"}], "max_replicas": 3})
    assert [each.model for each in two_bundles.bundles] == ["one", "two"]
    assert (two_bundles.min_replicas, two_bundles.max_replicas, two_bundles.bundles_open) == (1, 3, 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "no bundle"),
        ({**ONE, "bundles": ["/b"]}, "conflicting options"),
        ({"bundles": ["/a/tiny", "/b/tiny"]}, "2 bundles named 'tiny'"),
        ({"bundles": [{"path": "/a"}]}, "model"),
        ({**ONE, "bundles_open": 2}, "bundles_open 2"),
        ({**ONE, "replicas": 2, "max_replicas": 3}, "replicas together with"),
        ({**ONE, "min_replicas": 3, "max_replicas": 2}, "max_replicas 2"),
        ({**ONE, "health_seconds": float("nan")}, "health_seconds"),
        ({**ONE, "cpus": -1}, "cpus -1"),
    ],
    ids=str,
)
def test_invalid_options_are_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        options_from_args(args)
    assert message in caught.value.received
    assert caught.value.expected
    assert caught.value.remedy


def test_models_are_known_without_opening_bundles(tiny_bundle: Path, tmp_path: Path) -> None:
    chat = with_chat_template(tiny_bundle, tmp_path / "chat", "{{ messages[0].content }}")
    options = options_from_args({"bundles": [str(tiny_bundle), str(chat)]})
    models = models_from_bundles(options.bundles)
    assert next(iter(models.cards)) == tiny_bundle.name
    assert models.attention == {tiny_bundle.name: "full", "chat": "full"}
    assert [len(card["endpoints"]) for card in models.cards.values()] == [2, 5]
    with pytest.raises(BadInputError, match=r"has no manifest\.json"):
        models_from_bundles((NamedBundle(str(tmp_path), "nothing"),))


def test_invalid_args_are_rejected_before_anything_starts(tmp_path: Path) -> None:
    """Check that a missing Ray is reported before anything else."""
    with pytest.raises(Exception, match=r"ray is not installed|has no manifest"):
        app({"bundle": str(tmp_path)})


def test_deployed_file_is_valid() -> None:
    (application,) = yaml.safe_load((PROJECT / "deploy" / "ray.yaml").read_text(encoding="utf-8"))["applications"]
    assert application["import_path"] == "lopa.serve.ray:app"
    options = options_from_args(application["args"])
    assert (options.bundles[0].model, options.max_replicas) == ("tiny", 4)
