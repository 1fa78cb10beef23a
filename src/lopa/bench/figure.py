"""Pictures as PNG files by matplotlib, which is an extra. Knows no measurement."""

import io
from typing import Any

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install


def check_matplotlib() -> None:
    """Raise MissingBackendError unless matplotlib is installed, before anything is measured in vain."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingBackendError(
            "a plot was asked for, but matplotlib is not installed",
            expected="matplotlib",
            remedy=f"{pip_install('plot')}, or leave --plot out",
        ) from error


def png_from_figure(figure: Any) -> bytes:
    """A matplotlib figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
