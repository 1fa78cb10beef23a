"""Versions in constraints.txt that clients need. Without them pip silently falls back to old ones."""

from pathlib import Path

from packaging.requirements import Requirement

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
NEEDED = (
    "pytablewriter>=1.2.1",  # 0.38 gives lm-eval's tables the heads A, B, C
    # Its requirements. A newer python-dateutil made pip fall back to 0.38.
    "DataProperty>=1.1.0,<2",
    "mbstrdecoder>=1.0.0,<2",
    "pathvalidate>=2.3.0,<4",
    "python-dateutil>=2.8.0,<3",
    "tabledata>=1.3.1,<2",
    "tcolorpy>=0.0.5,<1",
    "typepy>=1.3.2,<2",
)


def test_versions_for_lm_eval_s_tables() -> None:
    """Check the versions behind the tables that `make test-clients` parses."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for requirement in map(Requirement, NEEDED):
        assert pinned[requirement.name] in requirement.specifier, requirement.name
