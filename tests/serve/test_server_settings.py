"""Settings of a server have the same values and errors on the command line, in Ray's arguments and in config.pbtxt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export

from lopa.cli.decode import serve
from lopa.runtime.decoder import NUM_SEQS_LIMIT
from lopa.runtime.devices import MAX_THREADS
from lopa.runtime.engine import MAX_PREFIX_CACHE_TOKENS, MAX_WAITING
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import MAX_BRANCHES, MAX_POSITIONS
from lopa.serve.ray.ray_options import RayOptions, options_from_args
from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import flags_of, settings_of
from lopa.serve.triton.config_text import settings_from_parameters

TABLE = settings_of(ServerSettings)
RIGHT: Mapping[str, Mapping[str, Any]] = {
    "INTEGER": {"1": 1, "2.0": 2, "1e1": 10},
    "SECONDS": {"0.5": 0.5, "2": 2.0, "1e9": 1e9},
    "[hermes|llama3|json]": {"json": "json"},
    "FILE": {"/keys": Path("/keys")},
    "TEXT": {"cpu:0": ("cpu:0",)},
    "NAME": {"a.example": ("a.example",)},
    "ORIGIN": {"https://a.example": ("https://a.example",)},
}
"""Values of texts, by the kind of the setting."""
WRONG = {
    "INTEGER": ("-1", "2.5", "many", "", "nan", "1e300", "9" * 5000),
    "SECONDS": ("-1", "nan", "inf", "2e9", "soon", ""),
    "[hermes|llama3|json]": ("xml", "JSON", ""),
    "TEXT": ("gpu", "mpi", ""),
}


def texts(kinds: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, text) for name, setting in TABLE.items() for text in kinds.get(setting.kind, ())]


def from_command(name: str, text: str) -> ServerSettings:
    """Return the settings that the command would run with."""
    flag = "device" if name == "devices" else TABLE[name].flag or name
    given = serve.command.make_context("serve", [f"--{flag.replace('_', '-')}={text}", "BUNDLE"]).params
    return ServerSettings(**{each: given[each] for each in TABLE})


def from_ray(name: str, value: Any) -> RayOptions:
    return options_from_args({"bundle": "/bundle", TABLE[name].flag or name: value})


def refusal(read: Any, name: str, text: str) -> tuple[str, str, str]:
    with pytest.raises(BadInputError) as caught:
        read(name, text)
    error = caught.value
    return error.received.replace(name, TABLE[name].flag or name), error.expected, error.remedy


@pytest.mark.parametrize(("name", "text"), texts(RIGHT))
def test_right_values_are_equal_in_every_front_end(name: str, text: str) -> None:
    value = RIGHT[TABLE[name].kind][text]
    found = [from_command(name, text), from_ray(name, text), from_ray(name, value)]
    if not TABLE[name].is_http:
        found.append(settings_from_parameters({name: text}))
    else:
        refusal(lambda name, text: settings_from_parameters({name: text}), name, text)
    assert [getattr(each, name) for each in found] == [value] * len(found)


@pytest.mark.parametrize(("name", "text"), texts(WRONG), ids=lambda text: text[:20])
def test_wrong_values_are_refused_with_the_same_words(name: str, text: str) -> None:
    found = [refusal(from_command, name, text), refusal(from_ray, name, text)]
    if not TABLE[name].is_http:
        found.append(refusal(lambda name, text: settings_from_parameters({name: text}), name, text))
        assert found[-1][2].endswith(" in config.pbtxt")
    assert len({(received, expected) for received, expected, _ in found}) == 1
    assert name == "devices" or found[0][0].startswith(f"invalid {TABLE[name].flag or name} ")


def test_bounds_are_those_of_the_engine() -> None:
    for name, low, high in (
        ("max_num_seqs", 1, NUM_SEQS_LIMIT),
        ("queue_limit", 0, MAX_WAITING),
        ("prefix_cache_tokens", 0, MAX_PREFIX_CACHE_TOKENS),
        ("max_num_batched_tokens", 1, MAX_PREFIX_CACHE_TOKENS),
        ("threads", 1, MAX_THREADS),
        ("max_tokens", 1, MAX_POSITIONS),
        ("max_branches", 1, MAX_BRANCHES),
    ):
        for value in (low, high):
            assert getattr(settings_from_parameters({name: str(value)}), name) == value
        refusal(from_ray, name, str(low - 1))
        refusal(from_ray, name, str(high + 1))
    for name in ("device_timeout", "max_seconds", "stall_seconds", "keep_alive_seconds"):
        refusal(from_ray, name, "0")
    assert from_ray("drain", 0).drain == from_command("drain", "0").drain == 0


@pytest.mark.parametrize("value", [True, [], {}, None, b"1"])
def test_values_of_other_types_are_refused(value: Any) -> None:
    for name, setting in TABLE.items():
        if not (value is None and setting.default is None) and not (isinstance(value, list) and setting.default == ()):
            with pytest.raises(BadInputError):
                from_ray(name, value)


@pytest.mark.parametrize(
    ("written", "meant"), [("max_num_seq", "max_num_seqs"), ("queue_limt", "queue_limit"), ("bundel", "bundle")]
)
def test_unknown_names_get_a_suggestion(written: str, meant: str) -> None:
    with pytest.raises(BadInputError) as caught:
        settings_from_parameters({written: "1"})
    assert caught.value.received == f"unknown setting {written!r}"
    assert caught.value.remedy == f"did you mean {meant}? Correct it in config.pbtxt"
    with pytest.raises(BadInputError, match="did you mean max_num_seqs"):
        options_from_args({"bundle": "/bundle", "max_num_seq": 1})


def test_names_in_deployed_files_stay() -> None:
    renamed = {flag: name for flag, name in flags_of(ServerSettings).items() if flag != name}
    assert renamed == {
        "queue": "queue_limit",
        "cache_tokens": "prefix_cache_tokens",
        "stall": "stall_seconds",
        "keep_alive": "keep_alive_seconds",
    }


def test_lists_are_repeated_options_or_texts_with_commas() -> None:
    given = serve.command.make_context("serve", ["--cors=http://a", "--cors=http://b", "BUNDLE"]).params
    assert given["cors"] == from_ray("cors", "http://a, http://b").cors == ("http://a", "http://b")


def test_every_option_of_the_command_reaches_the_settings(tmp_path: Path) -> None:
    """Refuse a bad value before anything is opened."""
    for name, setting in TABLE.items():
        if wrong := WRONG.get(setting.kind):
            flag = "device" if name == "devices" else (setting.flag or name).replace("_", "-")
            done = lopa_export("serve", tmp_path / "nothing", f"--{flag}={wrong[0]}")
            assert (done.returncode, done.stderr.count("\n")) == (2, 3)
            assert "nothing" not in done.stderr


def test_settings_are_checked_in_python_too() -> None:
    with pytest.raises(BadInputError, match="invalid queue -1"):
        ServerSettings(queue_limit=-1)
