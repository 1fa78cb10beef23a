"""The bill of materials: about the wheel, with licences, without what nobody requires or where it came from."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tools.release.sbom import about_product, add_licences, licences_of_environment

from lopa.runtime.errors import CheckFailedError

WHEEL = ("thing-1-py3-none-any.whl", "ab" * 32)
LICENSED = {"licenses": [{"license": {"id": "MIT"}}]}
DOCUMENT: dict[str, Any] = {
    "specVersion": "1.6",
    "metadata": {"tools": {"components": []}},
    "components": [
        {"name": "pip", "version": "1", "bom-ref": "pip==1", "type": "library"},
        {
            "name": "thing",
            "version": "1",
            "bom-ref": "thing==1",
            "type": "application",
            "externalReferences": [{"url": "file:///home/x/thing.whl", "type": "distribution"}],
            **LICENSED,
        },
        {"name": "numpy", "version": "2", "bom-ref": "numpy==2", "type": "library", **LICENSED},
    ],
    "dependencies": [
        {"ref": "thing==1", "dependsOn": ["numpy==2", "pip==1"]},
        {"ref": "numpy==2"},
        {"ref": "pip==1"},
    ],
}


def test_it_is_about_the_wheel() -> None:
    made = about_product(deepcopy(DOCUMENT), "thing", WHEEL)
    subject = made["metadata"]["component"]
    assert (subject["name"], subject["version"], subject["type"]) == ("thing", "1", "library")
    assert subject["purl"] == f"pkg:pypi/thing@1?file_name={WHEEL[0]}"
    assert subject["hashes"] == [{"alg": "SHA-256", "content": WHEEL[1]}]
    assert [each["name"] for each in made["components"]] == ["numpy"]
    assert made["dependencies"] == [{"ref": "thing==1", "dependsOn": ["numpy==2"]}, {"ref": "numpy==2"}]
    assert "file:" not in str(made)


@pytest.mark.parametrize("name", ["thing", "numpy"])
def test_a_package_without_a_licence_is_named(name: str) -> None:
    document = deepcopy(DOCUMENT)
    for component in document["components"]:
        if component["name"] == name:
            del component["licenses"]
    with pytest.raises(CheckFailedError, match=f"no licence is told of {name}"):
        about_product(document, "thing", WHEEL)
    add_licences(document["components"], {name: "3-Clause BSD License"})
    about_product(document, "thing", WHEEL)


def test_a_licence_that_is_told_stays() -> None:
    components = deepcopy(DOCUMENT["components"])
    add_licences(components, {"numpy": "another"})
    assert components[2]["licenses"] == LICENSED["licenses"]


def test_licences_are_read_from_metadata(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, field in (("one", "License: 3-Clause BSD License"), ("two", "Summary: x"), ("three", "License:  ")):
        (packages / f"{name}-1.dist-info").mkdir(parents=True)
        (packages / f"{name}-1.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{field}\n"
        )
    assert licences_of_environment(tmp_path) == {"one": "3-Clause BSD License"}
