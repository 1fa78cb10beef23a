"""model.py of a model repository, copied there by `lopa-export triton`. It locates and runs lopa.

Triton imports it. It imports nothing of lopa before it has set the path.
"""

import json
import sys
from typing import Any


class TritonPythonModel:
    """Model class that Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model. Failures become Triton errors, which its log and its load request show."""
        import triton_python_backend_utils as backend

        parameters = json.loads(args["model_config"]).get("parameters", {})
        path = parameters.get("python_path", {}).get("string_value", "")
        sys.path[1:1] = [folder for folder in path.split(":") if folder]
        try:
            from lopa.runtime.errors import LopaError
            from lopa.serve.triton.triton_model import TritonModel
        except ImportError as error:
            raise backend.TritonModelException(
                f"{error}\n"
                f"  expected: lopa-export installed for Triton's own Python {sys.version.split()[0]} (no environment)\n"
                "  what to do: install its wheel there with pip, or name its folder in config.pbtxt with"
                ' parameters { key: "python_path" value { string_value: "..." } }'
            ) from error
        try:
            self._model = TritonModel.open(args, backend)
        except LopaError as error:
            raise backend.TritonModelException(str(error)) from error

    def execute(self, requests: list[Any]) -> None:
        """Accept requests, which are answered asynchronously."""
        self._model.execute(requests)

    def finalize(self) -> None:
        """Close the model when Triton unloads it."""
        self._model.close()
