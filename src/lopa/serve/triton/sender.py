"""One request's way back to its client, in Triton's terms."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lopa.serve.triton.told import Told


class Sender:
    """Sends any number of parts, then the end or an error, once."""

    def __init__(self, responses: Any, backend: Any) -> None:
        """A response sender of a request, and triton_python_backend_utils."""
        self._responses, self._backend = responses, backend

    def send(self, outputs: Mapping[str, str]) -> None:
        """A part."""
        self._responses.send(self._response(outputs))

    def end(self, outputs: Mapping[str, str]) -> None:
        """The last part."""
        self._responses.send(self._response(outputs), flags=self._last)

    def fail(self, told: Told) -> None:
        """An error instead of the last part."""
        error = self._backend.TritonError(told.text, getattr(self._backend.TritonError, told.code))
        self._responses.send(self._backend.InferenceResponse(error=error), flags=self._last)

    @property
    def cancelled(self) -> bool:
        """Whether Triton knows that nobody waits any more; asks it."""
        return bool(self._responses.is_cancelled())

    @property
    def _last(self) -> int:
        return int(self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, outputs: Mapping[str, str]) -> Any:
        tensors = [self._backend.Tensor(name, np.array([text.encode()], object)) for name, text in outputs.items()]
        return self._backend.InferenceResponse(tensors)
