"""Describe installed packages as a CycloneDX bill of materials.

    python -m tools.release.bill_of_materials REPORT > OUTPUT

REPORT is written by `pip install --report` of pip 26. The image's build runs this file without the other tools.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def bill_of_materials(report: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials of the requested package and of all that it needs.

    Raises ValueError for a package without a licence.
    """
    packages: dict[str, Any] = {canonicalize_name(each["metadata"]["name"]): each for each in report["install"]}
    components = {name: _component(each) for name, each in packages.items()}
    refs = {name: each["bom-ref"] for name, each in components.items()}
    needed = _needed_packages(packages, report["environment"])
    (subject,) = (name for name, each in packages.items() if each["requested"])
    return {
        **{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1},
        "metadata": {"component": components.pop(subject)},
        "components": [components[name] for name in sorted(components)],
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[each] for each in sorted(needed[name])]} for name in sorted(needed)
        ],
    }


def _component(package: dict[str, Any]) -> dict[str, Any]:
    metadata = package["metadata"]
    name, version = metadata["name"], metadata["version"]
    stated = [each for each in metadata.get("classifier", []) if each.startswith("License :: ")]
    licences = [{"license": {"name": each}} for each in stated or metadata.get("license", "").splitlines()[:1]]
    if expression := metadata.get("license_expression"):
        licences = [{"expression": expression}]
    if not licences:
        raise ValueError(f"{name} has no licence in its metadata")
    purl = f"pkg:pypi/{canonicalize_name(name)}@{quote(version)}"
    hashes = [{"alg": "SHA-256", "content": package["download_info"]["archive_info"]["hashes"]["sha256"]}]
    described = {"type": "library", "bom-ref": purl, "name": name, "version": version}
    return {**described, "hashes": hashes, "licenses": licences, "purl": purl}


def _needed_packages(packages: dict[str, Any], environment: dict[str, str]) -> dict[str, set[str]]:
    """Return the direct dependencies of each package, with those of the extras that others need."""
    extras = {name: {"", *each.get("requested_extras", [])} for name, each in packages.items()}
    needed: dict[str, set[str]] = {name: set() for name in packages}
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        for required in map(Requirement, packages[name]["metadata"].get("requires_dist", [])):
            marker, other = required.marker, canonicalize_name(required.name)
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in extras[name]):
                needed[name].add(other)
                if not required.extras <= extras[other]:
                    extras[other] |= required.extras
                    waiting.append(other)
    return needed


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(json.loads(Path(sys.argv[1]).read_text())), indent=1))
