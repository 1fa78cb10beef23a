"""Asks over Triton's gRPC stream, in .venv-triton: `grpc_client.py ADDRESS MODEL JSON`; prints JSON.

Each request of the list is asked at once with the others: {"inputs", "parameters", "cancel_after": parts}. What came:
{"parts": [outputs], "error": text or null, "cancelled": bool}. Each says "running" on standard error
with its first part.
"""

import json
import queue
import sys
import time

import numpy as np
from tritonclient import grpc

WAIT = 60.0
SETTLE = 0.5
"""Seconds before a stream is ended behind a whole answer. Without cancelling it, tritonclient hangs now and then; a
cancel in the moment of the last part has Triton 2.51 keep the stream, and with it the model, for ever."""


def main() -> None:
    address, model, text = sys.argv[1:]
    asked = json.loads(text)
    clients = [grpc.InferenceServerClient(address) for _ in asked]
    news = [queue.Queue() for _ in asked]
    for client, each, came in zip(clients, asked, news, strict=True):
        client.start_stream(callback=lambda result, error, came=came: came.put((result, error)))
        inputs = []
        for name, value in each["inputs"].items():
            flag = isinstance(value, bool)
            tensor = grpc.InferInput(name, [1], "BOOL" if flag else "BYTES")
            tensor.set_data_from_numpy(np.array([value], bool) if flag else np.array([value.encode()], object))
            inputs.append(tensor)
        parameters = each.get("parameters") or None
        client.async_stream_infer(model, inputs, parameters=parameters, enable_empty_final_response=True)
    together = zip(news, clients, asked, strict=True)
    print(json.dumps([outcome(came, client, each.get("cancel_after")) for came, client, each in together]))


def outcome(came: "queue.Queue", client: grpc.InferenceServerClient, cancel_after: "int | None") -> dict:
    parts = []
    while True:
        result, error = came.get(timeout=WAIT)
        if error is not None:
            return ended(client, {"parts": parts, "error": str(error), "cancelled": False})
        response = result.get_response()
        if response.outputs:
            parts.append({each.name: result.as_numpy(each.name)[0].decode() for each in response.outputs})
        if len(parts) == 1:
            print("running", file=sys.stderr, flush=True)
        if len(parts) == cancel_after:
            client.stop_stream(cancel_requests=True)
            return {"parts": parts, "error": None, "cancelled": True}
        if response.parameters["triton_final_response"].bool_param:
            return ended(client, {"parts": parts, "error": None, "cancelled": False})


def ended(client: grpc.InferenceServerClient, found: dict) -> dict:
    time.sleep(SETTLE)
    client.stop_stream(cancel_requests=True)
    return found


main()
