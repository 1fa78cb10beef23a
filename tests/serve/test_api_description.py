"""The OpenAPI document: valid, complete, and open to every body that the server accepts."""

import asyncio
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator
from tests.serve.openai.test_foreign_options import ACCEPTED

import lopa
from lopa.serve.answering.service import PendingService
from lopa.serve.app import app_from_pending
from lopa.serve.http.keys import ApiKeys
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.metrics import ServeMetrics
from lopa.serve.protocols.api_description import PATHS, api_description
from lopa.serve.serve_limits import ServeLimits

POSTS = [path.split()[1] for path in PATHS if path.startswith("POST")]


def is_valid(document: dict[str, Any], path: str, body: Any) -> bool:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    Draft202012Validator.check_schema(whole)
    return Draft202012Validator(whole).is_valid(body)


def test_accepted_bodies_are_valid_and_wrong_ones_are_not() -> None:
    document = api_description()
    minimal = {"model": "m", "messages": [], "max_tokens": 4, "input": "x", "choices": ["a"], "tokens": [1]}
    for path in POSTS:
        for body, _ in ACCEPTED:
            assert is_valid(document, path, {**minimal, "seed": -1, "stop": "", **body}), (path, body)
        for wrong in ({"temperature": "1"}, {"lopa": {"attention": "some"}}, {"lopa": {"skip_threshold": 2}}):
            assert not is_valid(document, path, {**minimal, **wrong}), (path, wrong)
    assert not is_valid(document, "/v1/completions", {"prompt": "x"})


def test_the_whole_document_is_valid_openapi() -> None:
    pytest.importorskip("openapi_spec_validator").validate(api_description())


def test_every_path_is_served_and_those_that_compute_need_a_key() -> None:
    keys = ApiKeys(["k"])
    pending = PendingService(limits=ServeLimits(), metrics=ServeMetrics("m"), keys=keys, reason="opening")
    app = app_from_pending(pending, OriginPolicy())

    async def statuses(**headers: str) -> dict[str, int]:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            assert (await client.get("/version")).json() == {"version": lopa.__version__}
            assert (await client.get("/openapi.json")).json() == api_description()
            return {name: (await client.request(*name.split(), json={})).status_code for name in PATHS}

    open_paths = {
        name: 503 if name == "GET /ready" else 200 for name in PATHS if "/v1" not in name and name[:4] == "GET "
    }
    with_keys = PATHS.keys() - open_paths.keys()
    assert asyncio.run(statuses()) == open_paths | dict.fromkeys(with_keys, 401)
    assert asyncio.run(statuses(authorization="Bearer k")) == open_paths | dict.fromkeys(with_keys, 503)
