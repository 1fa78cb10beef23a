"""Versions in constraints.txt that clients need and pip would not choose: it goes back to old ones without a word."""

from pathlib import Path

from packaging.requirements import Requirement

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
NEEDED = (
    "pytablewriter>=1.2.1",  # lm-eval's tables have the heads A, B, C with 0.38
    # What it requires; a newer python-dateutil is what made pip go back to 0.38.
    "DataProperty>=1.1.0,<2",
    "mbstrdecoder>=1.0.0,<2",
    "pathvalidate>=2.3.0,<4",
    "python-dateutil>=2.8.0,<3",
    "tabledata>=1.3.1,<2",
    "tcolorpy>=0.0.5,<1",
    "typepy>=1.3.2,<2",
)


def test_tables_of_lm_eval_have_their_heads() -> None:
    """`make test-clients` reads one; this holds what it is made with."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for requirement in map(Requirement, NEEDED):
        assert pinned[requirement.name] in requirement.specifier, requirement.name
