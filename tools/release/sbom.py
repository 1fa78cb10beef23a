"""A bill of materials in CycloneDX's JSON: the wheel, what it requires, in which versions and under which licences."""

import json
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from lopa.runtime.errors import CheckFailedError
from tools.release.programs import Programs, output_of

VERSION = "1.6"
"""Of CycloneDX."""
_OF_VENV = {"pip", "setuptools"}
"""What Python puts into every environment: nothing requires it."""
_VALIDATE = f"""
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V{VERSION.replace(".", "_")}).validate_str(open(sys.argv[1]).read())
sys.exit(str(fault) if fault else 0)
"""


def write_sbom(
    programs: Programs, environment: Path, name: str, wheel: tuple[str, str], output: Path, epoch: int
) -> int:
    """Describe the packages in `environment` with `name` as what they are for; how many others there are.

    `wheel` is its file's name and SHA-256. Raises CheckFailedError where CycloneDX's own program or schema refuses.
    """
    command: list[str | Path] = [
        "env",
        f"SOURCE_DATE_EPOCH={epoch}",
        programs.path("cyclonedx-py"),
        *("environment", environment, "--output-reproducible", "--sv", VERSION, "--of", "JSON", "-o", output),
    ]
    output_of(command, what="cyclonedx-py environment")
    document = json.loads(output.read_text(encoding="utf-8"))
    add_licences(document["components"], licences_of_environment(environment))
    document = about_product(document, name, wheel)
    output.write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    programs.run("python", "-c", _VALIDATE, output, what=f"the schema of CycloneDX {VERSION}")
    return len(document["components"])


def licences_of_environment(environment: Path) -> dict[str, str]:
    """What packages say of their licence in a field of their metadata that CycloneDX's program passes over, by name."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    return {
        each.metadata["Name"]: said
        for each in distributions(path=[str(packages)])
        if "License" in each.metadata and (said := each.metadata["License"].strip()) and "\n" not in said
    }


def add_licences(components: list[dict[str, Any]], said: dict[str, str]) -> None:
    """Give every component without a licence the one that its package says."""
    for component in components:
        if not component.get("licenses") and component["name"] in said:
            component["licenses"] = [{"license": {"acknowledgement": "declared", "name": said[component["name"]]}}]


def about_product(document: dict[str, Any], name: str, wheel: tuple[str, str]) -> dict[str, Any]:
    """A document about an environment as one about the product `name` that is installed there.

    Its component becomes the subject, with the wheel's digest and without the place of this machine that it was
    installed from; what every environment has is left out. Raises CheckFailedError where one has no licence.
    """
    components = [each for each in document["components"] if each["name"].lower() not in _OF_VENV]
    (product,) = [each for each in components if each["name"] == name]
    others = [each for each in components if each is not product]
    if nameless := [each["name"] for each in (product, *others) if not each.get("licenses")]:
        raise CheckFailedError(
            f"no licence is told of {', '.join(nameless)}",
            expected="licences in the metadata of every package",
            remedy="ask its authors; a package without a licence cannot be passed on",
        )
    references = [each for each in product.get("externalReferences", []) if each["url"].startswith("https://")]
    subject = {
        **product,
        "type": "library",
        "purl": f"pkg:pypi/{name}@{product['version']}?file_name={wheel[0]}",
        "hashes": [{"alg": "SHA-256", "content": wheel[1]}],
        "externalReferences": references,
    }
    kept = {each["bom-ref"] for each in (subject, *others)}
    edges = [
        {**each, **({"dependsOn": [ref for ref in each["dependsOn"] if ref in kept]} if "dependsOn" in each else {})}
        for each in document["dependencies"]
        if each["ref"] in kept
    ]
    return {
        **document,
        "metadata": {**document.get("metadata", {}), "component": subject},
        "components": others,
        "dependencies": edges,
    }
