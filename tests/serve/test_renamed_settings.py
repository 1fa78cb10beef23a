"""Former names of settings in Ray's args and Triton's parameters."""

import pytest

from lopa.serve.ray.ray_options import options_from_args
from lopa.serve.renamed_settings import current_settings
from lopa.serve.triton.triton_settings import settings_from_parameters


def test_a_former_name_works_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert settings_from_parameters({"slots": "5"}).max_num_seqs == 5
    assert options_from_args({"bundle": "b", "slots": "3"}).max_num_seqs == 3
    assert caplog.messages == ["slots is deprecated; use max_num_seqs"] * 2


def test_the_current_name_wins() -> None:
    assert current_settings({"slots": 1, "max_num_seqs": 2, "queue": 3}) == {"max_num_seqs": 2, "queue": 3}
