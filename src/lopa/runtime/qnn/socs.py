"""Qualcomm chips by name, with the numbers that QNN needs to compile for them."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.errors import BadInputError

MACHINE = Path("/sys/devices/soc0/machine")
"""File in which Linux on a Snapdragon names the chip."""
_NUMBERS = re.compile(r"(\d{1,4}):(\d{2,3})", re.ASCII)


@dataclass(frozen=True)
class QnnSoc:
    """A chip, as QNN's options `soc_model` and `htp_arch` name it."""

    name: str
    """Qualcomm's name, or "MODEL-vARCH" for a chip given by its numbers."""
    soc_model: int
    htp_arch: int
    """Version of the NPU, e.g. 75."""


SOCS = {
    name: QnnSoc(name, soc_model, htp_arch)
    for name, soc_model, htp_arch in (("SM8550", 43, 73), ("SM8650", 57, 75), ("SM8750", 69, 79), ("SM8850", 87, 81))
}
"""Chips whose numbers were tried in the emulator of QNN 2.51."""


def soc_from_option(text: str) -> QnnSoc:
    """Return the chip called `text`, or the one with the numbers "SOC_MODEL:HTP_ARCH".

    Raises BadInputError for anything else.
    """
    if text.upper() in SOCS:
        return SOCS[text.upper()]
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None:
        model, arch = int(numbers[1]), int(numbers[2])
        known = next((soc for soc in SOCS.values() if (soc.soc_model, soc.htp_arch) == (model, arch)), None)
        return known or QnnSoc(f"{model}-v{arch}", model, arch)
    near = difflib.get_close_matches(text.upper(), SOCS, n=2)
    raise BadInputError(
        f"unknown chip {text!r}",
        expected=f"{' or '.join(near or SOCS)}, or SOC_MODEL:HTP_ARCH such as 57:75",
        remedy="look up both numbers in Qualcomm's table of supported Snapdragon devices",
    )


def soc_of_machine(path: Path = MACHINE) -> str | None:
    """Return the name of this machine's chip, or None if the machine does not name one."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
