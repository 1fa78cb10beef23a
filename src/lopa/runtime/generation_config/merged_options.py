"""Options of a request over the defaults of a bundle or server, over the model's own, over the package's."""

from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import OPTIONS, GenerationConfig, checked_options
from lopa.runtime.generation_config.defaults import PACKAGE_DEFAULTS
from lopa.runtime.generation_config.option_checks import Options, check_together
from lopa.runtime.strategy import strategy_from_name

NOTHING: Options = {}
_USUAL: Options = {**dict.fromkeys(OPTIONS), **GenerationConfig().requested(), **PACKAGE_DEFAULTS}


def merged_options(config: GenerationConfig, *, own: Options = NOTHING, defaults: Options = NOTHING) -> Options:
    """Return every option by name: as requested, else as in `defaults`, `own` (the model's) or the package's.

    What the strategy has no use for is left out of the latter three. A default that does not go with what is requested
    is left out too. Options that nobody gives are None. Raises BadInputError for options that are unknown, wrong, or
    wrong together.
    """
    requested, own = config.requested(), checked_options(own)
    held = _defaults_beside(own, checked_options(defaults), requested) if defaults else {}
    return _together({**held, **requested}, own)


def defaults_beside(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    """Return those of `defaults` that hold beside the options `requested`; `own` are those of the model.

    A default that cannot be used together with what is requested is left out, such as gamma where another strategy is
    requested. Only the default strategy stays as long as none is requested. Raises BadInputError where `requested` is
    wrong with that strategy and no other default.
    """
    return _defaults_beside(checked_options(own), checked_options(defaults), checked_options(requested))


def _defaults_beside(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    strategy = {name: value for name, value in defaults.items() if name == "strategy" and name not in requested}
    base = {**strategy, **requested}
    others = {name: value for name, value in defaults.items() if name not in base}
    if others and _is_valid({**base, **others}, own):
        return {**strategy, **others}
    _together(base, own)
    kept = dict(strategy)
    while True:  # an option may need another one beside it
        added: dict[str, Any] = {}
        for name, value in others.items():
            if name not in kept and _is_valid({**base, **kept, **added, name: value}, own):
                added[name] = value
        if not added:
            return kept
        kept |= added


def _together(given: Options, own: Options) -> Options:
    """Return every option, where those `given` come before `own` and the package's; the latter two as it fits the
    strategy and the alignment. Raises BadInputError for options that do not go together."""
    usual: dict[str, Any] = {**_USUAL, **own}
    wanted = {**usual, **given}
    strategy, slides = strategy_from_name(wanted["strategy"]), wanted["alignment"] == "sliding"
    if strategy.default_cache is not None:
        usual["cache"] = strategy.default_cache
    if strategy.whole or slides:
        usual["sub_block"] = None
    if not strategy.block_steps or slides:
        usual["block_steps"] = None
    options = {**usual, **given}
    if strategy.whole:
        options["block_size"] = options["max_new_tokens"]
        options["cache"] = "none" if options["cache"] == "blocks" else options["cache"]
    check_together(options, strategy)
    return options


def _is_valid(given: Options, own: Options) -> bool:
    try:
        _together(given, own)
    except BadInputError:
        return False
    return True
