"""Client of Triton's gRPC stream, run in .venv-triton: `grpc_client.py ADDRESS MODEL JSON`. It prints JSON.

The JSON is a list of requests {"inputs", "parameters", "cancel_after": parts}, all sent at once. For each the output
has {"parts": [outputs], "error": text or null, "cancelled": bool}. A request prints "running" to standard error with
its first part.
"""

import json
import queue
import sys
import time

import numpy as np
from tritonclient import grpc

WAIT = 60.0
SETTLE = 0.5
"""Seconds between a complete answer and the end of its stream.

Without cancelling, tritonclient sometimes hangs. If a cancel coincides with the last part, Triton 2.51 keeps the stream
and its model forever.
"""


def main() -> None:
    address, model, text = sys.argv[1:]
    jobs = json.loads(text)
    clients = [grpc.InferenceServerClient(address) for _ in jobs]
    queues = [queue.Queue() for _ in jobs]
    for client, each, updates in zip(clients, jobs, queues, strict=True):
        client.start_stream(callback=lambda result, error, updates=updates: updates.put((result, error)))
        inputs = []
        for name, value in each["inputs"].items():
            flag = isinstance(value, bool)
            tensor = grpc.InferInput(name, [1], "BOOL" if flag else "BYTES")
            tensor.set_data_from_numpy(np.array([value], bool) if flag else np.array([value.encode()], object))
            inputs.append(tensor)
        parameters = each.get("parameters") or None
        client.async_stream_infer(model, inputs, parameters=parameters, enable_empty_final_response=True)
    together = zip(queues, clients, jobs, strict=True)
    print(json.dumps([outcome(updates, client, each.get("cancel_after")) for updates, client, each in together]))


def outcome(updates: "queue.Queue", client: grpc.InferenceServerClient, cancel_after: "int | None") -> dict:
    parts = []
    while True:
        result, error = updates.get(timeout=WAIT)
        if error is not None:
            return close_stream(client, {"parts": parts, "error": str(error), "cancelled": False})
        response = result.get_response()
        if response.outputs:
            parts.append({each.name: result.as_numpy(each.name)[0].decode() for each in response.outputs})
        if len(parts) == 1:
            print("running", file=sys.stderr, flush=True)
        if len(parts) == cancel_after:
            client.stop_stream(cancel_requests=True)
            return {"parts": parts, "error": None, "cancelled": True}
        if response.parameters["triton_final_response"].bool_param:
            return close_stream(client, {"parts": parts, "error": None, "cancelled": False})


def close_stream(client: grpc.InferenceServerClient, found: dict) -> dict:
    time.sleep(SETTLE)
    client.stop_stream(cancel_requests=True)
    return found


main()
