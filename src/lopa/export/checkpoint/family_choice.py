"""Family of a checkpoint, from its config.json and the user's request."""

from lopa.export.families import FAMILIES
from lopa.export.families.family import Family
from lopa.export.json_file import JsonValues, shown
from lopa.runtime.errors import BadInputError

_OTHERS = {"llada2_moe_veomni": "LLaDA2 with merged experts"}
"""Values of model_type of diffusion models that are not supported."""


def family_of_config(config: JsonValues, requested: str | None) -> Family:
    """Return the family that model_type and architectures name, or the requested one if it fits them.

    An autoregressive checkpoint with a family's layers belongs to that family only on request, because nothing in it
    says that it was trained for diffusion. Raises BadInputError for a checkpoint of no known family or of two, and for
    a request that contradicts the files.
    """
    if requested is not None and requested not in FAMILIES:
        raise BadInputError(
            f"unknown family {shown(requested)}", expected=f"one of {', '.join(FAMILIES)}", remedy="correct --family"
        )
    model_type = config.values.get("model_type")
    named = _named_families(config, model_type)
    if len(named) > 1:
        raise BadInputError(
            f"{_entries(config)}, which belong to {' and '.join(sorted(named))}",
            expected="entries of one family",
            remedy="copy the config.json that belongs to these weights",
        )
    if requested is None:
        return _only(named, model_type, config)
    family = FAMILIES[requested]
    if named - {requested} or model_type not in (*family.model_types, *family.lookalikes):
        fits = ", ".join(repr(each) for each in (*family.model_types, *family.lookalikes))
        others = named - {requested}
        remedy = "use another --family, or none"
        if others:
            remedy = f"drop --family, or use --family {others.pop()}"
        elif named or model_type is None:  # nothing names another family
            remedy = f"copy config.json from the published checkpoint, or set its model_type to {fits}"
        raise BadInputError(
            f"{_entries(config)}, but family {requested} was requested",
            expected=f"a checkpoint of {family.model_names}, with model_type {fits}",
            remedy=remedy,
        )
    return family


def _named_families(config: JsonValues, model_type: object) -> set[str]:
    """Return the names of the families that config.json names.

    If several families have the model_type, the class decides, and without a class the families' marker entries.
    """
    classes = config.values.get("architectures")
    class_names = {each for each in classes if isinstance(each, str)} if isinstance(classes, list) else set()
    by_class = [family for family in FAMILIES.values() if not class_names.isdisjoint(family.classes)]
    by_type = [family for family in FAMILIES.values() if model_type in family.model_types]
    if any(family in by_type for family in by_class):
        return {family.name for family in by_class}
    marked = [family for family in by_type if family.marker is not None and config.values.get(family.marker)]
    chosen = marked or [family for family in by_type if family.marker is None or family.model_type != model_type]
    return {family.name for family in (*by_class, *chosen) if family in by_class or not family.shares_model_type}


def _only(named: set[str], model_type: object, config: JsonValues) -> Family:
    """Return the family that the files name. Raises BadInputError without one."""
    for name in named:
        if model_type in FAMILIES[name].model_types:
            return FAMILIES[name]
    known = "; ".join(f"{name} ({family.model_names})" for name, family in FAMILIES.items())
    other = _OTHERS.get(model_type) if isinstance(model_type, str) else None
    alike = [name for name, family in FAMILIES.items() if model_type in (*_shared(family), *family.lookalikes)]
    raise BadInputError(
        _entries(config) + ("" if other is None else f": {other}"),
        expected=f"a checkpoint of one of the families {known}",
        remedy="autoregressive checkpoints look the same; if this is a diffusion model, name its family "
        f"with --family {', '.join(alike)}"
        if alike
        else "export a checkpoint of one of these families; others are not supported",
    )


def _shared(family: Family) -> tuple[str, ...]:
    return (family.model_type,) if family.shares_model_type else ()


def _entries(config: JsonValues) -> str:
    """Return model_type and architectures of config.json, for errors."""
    values = config.values
    return (
        f"{config.source} has model_type {shown(values.get('model_type'))} and architectures "
        f"{shown(values.get('architectures'))}"
    )
