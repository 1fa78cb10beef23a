"""lopa-export doctor: what it finds, and remedies that can be followed."""

import re

from tests.cli.command import lopa_export


def test_doctor_lists_abilities_and_devices() -> None:
    result = lopa_export("doctor")
    assert result.returncode == 0
    for part in ("python", "decode (runtime): numpy", "export and verify: torch", "Ascend", "cpu: ready", "cuda:N:"):
        assert part in result.stdout
    asked = re.findall(r" install (.*)", result.stdout)
    assert asked
    assert not any("lopa" in words for words in asked)  # no remedy asks an index for this project
