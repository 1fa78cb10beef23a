import json
from pathlib import Path

import msgspec
import pytest
from tests.runtime.ascend.stand_in_om import OmInput, OmOutput, StandInModel, read_om, write_om

MODEL = StandInModel(
    atc_cmdline=["atc", "--mode=0"],
    soc_version="Ascend910B1",
    inputs=[OmInput(name="ids", dims=[1, -1], dtype="int64")],
    outputs=[OmOutput(name="rows", dtype="bfloat16")],
    gears=[[32], [64]],
    graph=bytes(range(256)),
    weights=["weight/weight_0"],
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_om(tmp_path / "m.om", MODEL)
    assert read_om(tmp_path / "m.om") == MODEL
    assert json.loads((tmp_path / "m.om").read_bytes())["stand_in"] == "OM"


@pytest.mark.parametrize(("field", "value"), [("stand_in", "IM"), ("version", 2), ("more", 1), ("gears", [["a"]])])
def test_another_file_is_refused(tmp_path: Path, field: str, value: object) -> None:
    write_om(tmp_path / "m.om", MODEL)
    text = json.loads((tmp_path / "m.om").read_bytes())
    (tmp_path / "m.om").write_text(json.dumps({**text, field: value}))
    with pytest.raises(msgspec.ValidationError):
        read_om(tmp_path / "m.om")
