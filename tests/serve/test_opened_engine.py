"""An engine that a server opens has the server's settings."""

from pathlib import Path
from unittest.mock import patch

import pytest

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError
from lopa.serve import opened_engine as module
from lopa.serve.opened_engine import opened_engine
from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import settings_of

VALUES = {
    "device_timeout": 9.0,
    "threads": 1,
    "max_num_seqs": 3,
    "queue_limit": 5,
    "max_num_batched_tokens": 7,
    "prefix_cache_tokens": 11,
}


def test_every_setting_reaches_the_decoder_and_the_engine(tiny_bundle: Path) -> None:
    settings = ServerSettings(devices=("numpy",), **VALUES)  # type: ignore[arg-type]
    with (
        patch.object(module, "Decoder", wraps=Decoder) as decoders,
        patch.object(module, "Engine", wraps=Engine) as engines,
        opened_engine(tiny_bundle, settings, print) as (decoder, engine),
    ):
        assert decoder.devices == ["numpy"]
    given = decoders.open.call_args.kwargs | engines.call_args.kwargs
    assert VALUES.items() <= given.items()
    limits = {"max_tokens", "max_seconds", "max_branches"}
    assert VALUES.keys() | limits == {name for name, each in settings_of(ServerSettings).items() if not each.is_http}
    assert engine.closed
    with pytest.raises(BadInputError):
        decoder.generate("1")


def test_defaults_beyond_the_limits_are_refused_before_the_warm_up(tiny_bundle: Path) -> None:
    with (
        patch.object(module, "warm_up") as warm,
        pytest.raises(BadInputError, match="default branches 3 exceeds"),
        opened_engine(tiny_bundle, ServerSettings(max_branches=2), print, defaults={"branches": 3}),
    ):
        raise AssertionError("not opened")
    assert not warm.called
