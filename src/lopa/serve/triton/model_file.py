"""model.py of a model repository: it finds lopa, whose code answers. Copied there by `lopa-export triton`.

Triton imports it; it imports nothing of ours before it knows where that is.
"""

import json
import sys
from typing import Any


class TritonPythonModel:
    """What Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model; what cannot be is Triton's error, which is shown in its log and by its load request."""
        import triton_python_backend_utils as backend

        parameters = json.loads(args["model_config"]).get("parameters", {})
        path = parameters.get("python_path", {}).get("string_value", "")
        sys.path[1:1] = [folder for folder in path.split(":") if folder]
        try:
            from lopa.runtime.errors import LopaError
            from lopa.serve.triton.model import TritonModel
        except ImportError as error:
            raise backend.TritonModelException(
                f"{error}\n"
                f"  expected: lopa-export for Triton's own Python {sys.version.split()[0]}: it ignores environments\n"
                "  what to do: install its wheel there with pip, or say the folder where it is in config.pbtxt:"
                ' parameters { key: "python_path" value { string_value: "..." } }'
            ) from error
        try:
            self._model = TritonModel.open(args, backend)
        except LopaError as error:
            raise backend.TritonModelException(str(error)) from error

    def execute(self, requests: list[Any]) -> None:
        """Take requests; answers come by themselves."""
        self._model.execute(requests)

    def finalize(self) -> None:
        """Close the model, which Triton unloads."""
        self._model.close()
