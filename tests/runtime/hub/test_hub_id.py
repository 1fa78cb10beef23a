"""Ids of the Hub in paths and addresses."""

from pathlib import Path

import pytest

from lopa.runtime.hub.hub_id import HubId, hub_id_from_path, hub_id_from_uri


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hf://org/name", HubId("org/name")),
        ("hf://org/name@refs/pr/3", HubId("org/name", "refs/pr/3")),
        ("hf://org/name/file", None),
        ("hf://../name", None),
        ("hf://org/name@../../main", None),
        ("out/bundle", None),
    ],
)
def test_uris(text: str, found: HubId | None) -> None:
    assert hub_id_from_uri(text) == found
    assert hub_id_from_uri(Path(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@main", HubId("org/name", "main")),
        ("hf://org/name", HubId("org/name")),
        ("https://huggingface.co/org/name/tree/main", HubId("org/name", "main")),
        ("here/name", None),
        ("a/b/c", None),
        ("/org/name", None),
        ("org/na me", None),
    ],
)
def test_paths_that_do_not_exist(
    text: str, found: HubId | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub_id_from_path(Path(text)) == found
