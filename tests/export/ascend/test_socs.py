import pytest

from lopa.export.ascend.rules import SOCS, soc_from_name
from lopa.runtime.errors import BadInputError


def test_properties_of_chips() -> None:
    assert soc_from_name("Ascend910B1").bfloat16
    assert not soc_from_name("Ascend310P3").bfloat16
    assert soc_from_name("Ascend910_9392").max_buckets == 100
    assert soc_from_name("Ascend950PR_9599").max_buckets == 256
    assert len(SOCS) == 20


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Ascend910B", "Ascend910B"),
        ("910b2", "Ascend910B2"),
        ("Ascend950PR", "Ascend950PR_9579"),
    ],
)
def test_the_nearest_names_are_offered(name: str, near: str) -> None:
    with pytest.raises(BadInputError) as caught:
        soc_from_name(name)
    assert repr(name) in caught.value.received
    assert "perhaps" in caught.value.expected
    assert near in caught.value.expected
