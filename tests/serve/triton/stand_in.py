"""Stand-in for triton_python_backend_utils and for Triton's calls of a decoupled model; it enforces Triton's contract.

It follows the python backend's documentation. A response has either an error or the configured outputs in their types
and shapes. A sender ends once and accepts nothing afterwards. `execute` of a decoupled model returns None.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.serve.servers import WAIT
from tests.serve.triton.config_reader import config_of_text

FINAL = 1
_DTYPES = {"TYPE_STRING": np.object_, "TYPE_BOOL": np.bool_}


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        assert isinstance(message, str)
        assert code in range(8)
        self.text, self.code = message, code


class TritonModelException(Exception):  # noqa: N818 - its name
    pass


class Tensor:
    def __init__(self, name: str, values: np.ndarray[Any, Any]) -> None:
        assert isinstance(name, str)
        assert isinstance(values, np.ndarray)
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._values


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.tensors, self.error = list(output_tensors or []), error


@dataclass
class Sender:
    """Response sender of a request; it records what was sent."""

    config: Mapping[str, Any]
    parts: list[dict[str, str]] = field(default_factory=list)
    error: TritonError | None = None
    client_cancelled: bool = False
    """True once the client has cancelled."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self._ended.is_set(), "nothing may be sent after the last response"
        assert flags in (0, FINAL)
        assert response is not None or flags == FINAL
        if response is not None and response.error is not None:
            assert not response.tensors
            self.error = response.error
        elif response is not None:
            self.parts.append(self._texts(response))
        if flags == FINAL:
            self._ended.set()

    def is_cancelled(self) -> bool:
        return self.client_cancelled

    def ended(self) -> "Sender":
        """Wait for the last response and return the sender."""
        assert self._ended.wait(WAIT), "the last response is missing"
        return self

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def _texts(self, response: InferenceResponse) -> dict[str, str]:
        outputs = {each["name"]: each for each in self.config["output"]}
        assert sorted(outputs) == sorted(each.name() for each in response.tensors)
        for tensor in response.tensors:
            values, declared = tensor.as_numpy(), outputs[tensor.name()]
            assert list(values.shape) == declared["dims"]
            assert values.dtype == _DTYPES[declared["data_type"]]
            assert isinstance(values[0], bytes)
        return {each.name(): each.as_numpy()[0].decode() for each in response.tensors}


class Request:
    def __init__(self, config: Mapping[str, Any], inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        self.sender = Sender(config)
        self._parameters = dict(parameters)
        self._inputs = [Tensor(name, _array(value, config, name)) for name, value in inputs.items()]

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def get_response_sender(self) -> Sender:
        return self.sender


class Loaded:
    """Model of a repository, loaded as Triton loads the first instance of its first group."""

    def __init__(self, model: Any, folder: Path, *, instance: str | None = None, device: int = 0) -> None:
        self.config = config_of_text((folder / "config.pbtxt").read_text(encoding="utf-8"))
        assert (self.config["backend"], self.config["max_batch_size"]) == ("python", 0)
        assert self.config["model_transaction_policy"] == {"decoupled": True}
        assert self.config["name"] == folder.name, "Triton requires the folder's name"
        group = self.config["instance_group"][0]
        args = {
            "model_config": json.dumps(self.config),
            "model_instance_kind": group["kind"].removeprefix("KIND_"),
            "model_instance_name": instance or f"{group['name']}_0",
            "model_instance_device_id": str(device),
            "model_repository": str(folder),
            "model_version": "1",
            "model_name": folder.name,
        }
        self.model = model
        model.initialize(args)

    def ask(self, parameters: Mapping[str, Any] | None = None, **inputs: Any) -> Sender:
        """Send a request. Its answer arrives asynchronously."""
        request = Request(self.config, inputs, parameters or {})
        assert self.model.execute([request]) is None
        return request.sender


def backend(log: list[str] | None = None) -> SimpleNamespace:
    """Return Triton's module; the model's log lines are appended to `log`."""
    kept = [] if log is None else log
    logger = SimpleNamespace(log_verbose=kept.append, log_info=kept.append, log_warn=kept.append, log_error=kept.append)
    return SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        InferenceResponse=InferenceResponse,
        Logger=logger,
        Tensor=Tensor,
        TritonError=TritonError,
        TritonModelException=TritonModelException,
    )


def _array(value: Any, config: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    kinds = {each["name"]: each["data_type"] for each in config["input"]}
    given = value.encode() if isinstance(value, str) else value
    return np.array([given], _DTYPES[kinds[name]])
