"""Which family a checkpoint is of: what its config.json says, what the user asks for, and whether both agree."""

from lopa.export.families import FAMILIES
from lopa.export.families.family import Family
from lopa.export.json_file import JsonValues, shown
from lopa.runtime.errors import BadInputError

_OTHERS = {
    "sdar_moe": "SDAR as a mixture of experts",
    "llada2_moe": "LLaDA2, a mixture of experts",
    "lladamoe": "LLaDA-MoE, a mixture of experts",
    "llada_moe": "LLaDA-MoE, a mixture of experts",
    "diffusion_gemma": "DiffusionGemma, which begins with random tokens and feeds probabilities back",
}
"""Values of model_type of diffusion models that this network cannot be."""


def family_of_config(config: JsonValues, asked: str | None) -> Family:
    """The family that model_type and architectures say, or that is asked for by its name where they fit it.

    An autoregressive checkpoint with a family's layers is of that family only when asked for: nothing in it says that
    it was trained for diffusion. Raises BadInputError for a checkpoint of no family or of two, and for a family that
    was asked for against what the files say.
    """
    if asked is not None and asked not in FAMILIES:
        raise BadInputError(
            f"the family {shown(asked)}", expected=f"one of {', '.join(FAMILIES)}", remedy="correct its name"
        )
    model_type = config.values.get("model_type")
    said = _said(config, model_type)
    if len(said) > 1:
        raise BadInputError(
            f"{_read(config)}: of {' and '.join(sorted(said))} at once",
            expected="entries of one family",
            remedy="copy the config.json that belongs to these weights",
        )
    if asked is None:
        return _only(said, model_type, config)
    family = FAMILIES[asked]
    if said - {asked} or model_type not in (family.model_type, *family.lookalikes):
        fits = ", ".join(repr(each) for each in (family.model_type, *family.lookalikes))
        raise BadInputError(
            f"{_read(config)}, and the family {asked} asked for",
            expected=f"a checkpoint of {family.published}, with model_type {fits}",
            remedy=f"leave --family out, or ask for {said.pop()}" if said else "ask for another family, or for none",
        )
    return family


def _said(config: JsonValues, model_type: object) -> set[str]:
    """Names of the families that config.json names."""
    classes = config.values.get("architectures")
    named = {each for each in classes if isinstance(each, str)} if isinstance(classes, list) else set()
    return {
        family.name
        for family in FAMILIES.values()
        if (family.model_type == model_type and not family.shares_model_type) or not named.isdisjoint(family.classes)
    }


def _only(said: set[str], model_type: object, config: JsonValues) -> Family:
    """That which the files say, when nobody asked for one."""
    for name in said:
        if FAMILIES[name].model_type == model_type:
            return FAMILIES[name]
    known = "; ".join(f"{name} ({family.published})" for name, family in FAMILIES.items())
    other = _OTHERS.get(model_type) if isinstance(model_type, str) else None
    alike = [name for name, family in FAMILIES.items() if model_type in (*_shared(family), *family.lookalikes)]
    raise BadInputError(
        _read(config) + ("" if other is None else f": {other}"),
        expected=f"a checkpoint of one of the families {known}",
        remedy=f"an autoregressive checkpoint looks the same; if this one was trained as a diffusion model, say as "
        f"which with --family {', '.join(alike)}"
        if alike
        else "export a checkpoint of one of these families; others are not supported",
    )


def _shared(family: Family) -> tuple[str, ...]:
    return (family.model_type,) if family.shares_model_type else ()


def _read(config: JsonValues) -> str:
    """What config.json says, for errors."""
    values = config.values
    return (
        f"{config.source} has model_type {shown(values.get('model_type'))} and architectures "
        f"{shown(values.get('architectures'))}"
    )
