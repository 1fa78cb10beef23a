"""Former names of options and arguments: accepted for one minor version, in Python, bundles and requests."""

import copy
import dataclasses
import pickle

import pytest
from tests.plans import plan_of

from lopa import BadInputError, Decoder, Engine, GenerationConfig
from lopa.runtime.generation_config import checked_defaults, options_from_defaults
from lopa.runtime.plan.renamed_options import RENAMED_OPTIONS

VALUES = {
    "decide_frontier": True,
    "lossless": True,
    "per_step": 3,
    "published": True,
    "shared_rows": False,
    "take_back_limit": 5,
    "take_back_threshold": 0.25,
}


@pytest.mark.parametrize(("old", "new"), RENAMED_OPTIONS.items())
def test_an_option_is_accepted_and_read_by_its_former_name(old: str, new: str) -> None:
    value = VALUES[old]
    current = GenerationConfig(**{new: value})  # type: ignore[arg-type]
    assert getattr(current, new) == value
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}") as given:
        assert GenerationConfig(**{old: value}) == current  # type: ignore[arg-type]
    assert given[0].filename == __file__
    assert GenerationConfig.from_mapping({old: value}) == current
    with pytest.warns(DeprecationWarning, match=f"use {new}") as given:
        assert getattr(current, old) == value
    assert given[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=f"use {new}"):
        assert dataclasses.replace(GenerationConfig(seed=3), **{old: value}) == dataclasses.replace(current, seed=3)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=f"option {new} is given twice"):
        GenerationConfig.from_mapping({old: value, new: value})


def test_the_former_constructor_of_reference_mode() -> None:
    with pytest.warns(DeprecationWarning, match="use GenerationConfig"):
        config = GenerationConfig.reference(branches=3)  # type: ignore[operator]
    assert config == GenerationConfig(reference=True, branches=3)
    assert config.reference is True
    assert GenerationConfig().reference is False


def test_a_bundle_keeps_its_defaults_under_current_names() -> None:
    assert checked_defaults({"per_step": 3, "strategy": "top_n"}) == {"tokens_per_step": 3, "strategy": "top_n"}
    assert options_from_defaults({"lossless": True}) == {"speculative": True}


def test_a_plan_can_be_read_by_former_names() -> None:
    plan = plan_of(remask_threshold=0.5)
    with pytest.warns(DeprecationWarning, match="use remask_threshold"):
        assert plan.take_back_threshold == plan.remask_threshold == 0.5
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        plan.nothing  # noqa: B018


def test_configs_and_plans_are_copied_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    config = GenerationConfig(speculative=True, branches=2)
    for record in (config, plan_of(branches=2)):
        assert copy.deepcopy(record) == record
    assert pickle.loads(pickle.dumps(config)) == config
    assert not recwarn.list


def test_an_engine_accepts_its_former_arguments(decoder: Decoder) -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated: use") as given:
        engine = Engine(decoder, slots=2, joining_rows=50, prompt_rows=0)  # type: ignore[call-arg]
    assert {str(each.message).split()[-1] for each in given} == {
        "max_num_seqs", "max_num_batched_tokens", "prefix_cache_tokens"
    }  # fmt: skip
    assert {each.filename for each in given} == {__file__}
    with engine:
        status = engine.status
    assert status.max_num_seqs == 2
    with pytest.warns(DeprecationWarning, match="use max_num_seqs"):
        assert status.slots == 2
