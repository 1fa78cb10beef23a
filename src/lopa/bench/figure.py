"""PNG files of matplotlib figures. matplotlib is an optional dependency."""

import io
from typing import Any

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install


def check_matplotlib() -> None:
    """Raise MissingBackendError unless matplotlib is installed, before a long measurement starts."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingBackendError(
            "--plot needs matplotlib, which is not installed",
            expected="matplotlib",
            remedy=f"{pip_install('plot')}, or omit --plot",
        ) from error


def png_from_figure(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
