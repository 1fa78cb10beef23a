"""Sender of a request's responses in Triton's terms."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lopa.serve.triton.error_reply import ErrorReply


class Sender:
    """Sender of any number of parts, followed by exactly one end or error."""

    def __init__(self, responses: Any, backend: Any) -> None:
        """Store a request's response sender and triton_python_backend_utils."""
        self._responses, self._backend = responses, backend

    def send(self, outputs: Mapping[str, str]) -> None:
        """Send a part."""
        self._responses.send(self._response(outputs))

    def end(self, outputs: Mapping[str, str]) -> None:
        """Send the last part."""
        self._responses.send(self._response(outputs), flags=self._last)

    def fail(self, reply: ErrorReply) -> None:
        """Send an error instead of the last part."""
        error = self._backend.TritonError(reply.text, getattr(self._backend.TritonError, reply.code))
        self._responses.send(self._backend.InferenceResponse(error=error), flags=self._last)

    @property
    def cancelled(self) -> bool:
        """True if Triton reports that the client has cancelled the request. It asks Triton each time."""
        return bool(self._responses.is_cancelled())

    @property
    def _last(self) -> int:
        return int(self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, outputs: Mapping[str, str]) -> Any:
        tensors = [self._backend.Tensor(name, np.array([text.encode()], object)) for name, text in outputs.items()]
        return self._backend.InferenceResponse(tensors)
