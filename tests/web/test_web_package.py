"""The description of the npm package lopa-web agrees with the Python package. No node is needed."""

import json
import re

from tests.web.installed import WEB, options_only_in_python, source, strings_in

from lopa import __version__
from lopa.runtime.bundle.manifest import MAX_TILE_BYTES, SCHEMA_VERSION
from lopa.runtime.contract import CONTRACT_VERSION, TILE, TOP_K
from lopa.runtime.files.untrusted_input import MAX_JSON_BYTES
from lopa.runtime.generation_config import OPTIONS, PACKAGE_DEFAULTS
from lopa.runtime.strategy.strategies import STRATEGIES
from lopa.runtime.text.chat_template import ROLES


def constant(name: str, text: str) -> int:
    """Return a constant of TypeScript, a number or a power of two."""
    match = re.search(rf"const {name} = (\d+)(?: \* 2 \*\* (\d+)| \*\* (\d+))?;", text)
    assert match is not None, name
    first, factor, power = match.groups()
    found: int = int(first) ** int(power) if power else int(first) * 2 ** int(factor or 0)
    return found


def test_the_version_is_that_of_python() -> None:
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    assert package["version"] == __version__
    assert [lock["version"], lock["packages"][""]["version"]] == [__version__, __version__]


def test_the_lock_names_no_package_host() -> None:
    """Registries differ between machines. Digests ensure that all have the same packages."""
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    packages = [each for name, each in lock["packages"].items() if name]
    assert len(packages) > 5
    assert all("resolved" not in each and each["integrity"].startswith("sha512-") for each in packages)


def test_schema_and_contract_are_those_of_python() -> None:
    sizes, manifest, record = (source(name) for name in ("contract/sizes.ts", "bundle/manifest.ts", "bundle/record.ts"))
    assert constant("SCHEMA_VERSION", manifest) == SCHEMA_VERSION
    assert constant("CONTRACT_VERSION", sizes) == CONTRACT_VERSION
    assert [constant("TILE", sizes), constant("TOP_K", sizes)] == [TILE, TOP_K]
    assert constant("MAX_TILE_BYTES", manifest) == MAX_TILE_BYTES
    assert constant("MAX_JSON_BYTES", record) == MAX_JSON_BYTES


def test_every_option_and_strategy_of_python_is_known() -> None:
    """Options and strategies that lopa-web lacks are rejected by name."""
    config = source("generation_config/config.ts")
    checks = re.findall(r"^  (\w+): ", config[config.index("const CHECKS") :], re.MULTILINE)
    own = [*checks, "strategy", "seed", "stop"]
    assert sorted({*own, *options_only_in_python()}) == sorted(OPTIONS)
    strategies = source("strategy/strategies.ts")
    names = re.findall(r'name: "(\w+)"', strategies)
    assert sorted([*names, *strings_in(strategies, "ONLY_IN_PYTHON", "];")]) == sorted(STRATEGIES)


def test_the_roles_of_messages_are_those_of_python() -> None:
    text = source("text/chat_template.ts")
    begin = text.index("const ROLE") + len("const ROLE")
    assert sorted(re.findall("[a-z]+", text[begin : text.index(";", begin)])) == sorted(ROLES)


ONLY_IN_PYTHON = ("speculative", "anytime", "stop_token_ids")


def test_defaults_are_those_of_python() -> None:
    text = source("generation_config/resolve.ts")
    block = text[text.index("PACKAGE_DEFAULTS") : text.index("};", text.index("PACKAGE_DEFAULTS"))]
    pairs = dict(re.findall(r"^  (\w+): (.+),$", block, re.MULTILINE))
    found = {name: json.loads(value) for name, value in pairs.items() if name in PACKAGE_DEFAULTS}
    expected = {name: value for name, value in PACKAGE_DEFAULTS.items() if name not in ONLY_IN_PYTHON}
    assert found == json.loads(json.dumps(expected))
