"""The properties of one decoding option, its declaration as a field of a dataclass, and checks of its values.

A check returns the value as a plain Python value, or raises BadInputError.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from lopa.runtime.checked_values import (
    check_bool,
    check_choice,
    check_float,
    check_int,
    invalid_value,
    is_list,
    is_unicode,
    shown,
)
from lopa.runtime.errors import BadInputError, errors_as_bad_input

StrategyName = (
    Literal[
        "lopa",
        "d2f",
        "threshold",
        "vanilla",
        "sequential",
        "eb",
        "wino",
        "dream",
        "top_n",
        "factor",
        "klass",
        "credit",
        "local_leap",
    ]
    | str
)
"""Name of a built-in or registered strategy (lopa.runtime.strategy)."""
Alg = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Attention = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
SharedRows = Literal["never", "always", "auto"]
"""Rule for computing equal rows of several branches once: never, always, or (auto) if it is expected to be faster."""
WHOLE_CACHES = ("none", "prefix", "dual")
"""Caches for which the sequence contains the whole answer from the start."""

DEFAULT_BRANCHES = 4
"""Default number of branches on accelerators and in reference mode (see `branch_choice`)."""
MAX_AUTO_BRANCHES = 8
MAX_BRANCHES = 64
"""Maximum number of branches. Each takes memory quadratic in its window. No measured decode was faster with more than
8."""
MAX_POSITIONS = 2**31 - 1
"""Maximum of any number of positions. A model's own limit is checked later."""
MAX_STEPS = 2**16
"""Upper limit of the steps of Dream's schedule."""
MAX_ENTROPY = 1e3
"""Upper limit of entropies and divergences in nats. The logarithm of a vocabulary's size is below 20."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Limits of positive temperatures. Lower ones overflow float32; higher ones make all tokens equally likely."""
MAX_TOP_K = 2**24
MAX_SEED = 2**63 - 1
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
MAX_BIASES, MAX_BIAS = 4096, 100.0
"""Limits of the option `logit_bias`: its tokens, and the size of each bias (OpenAI's)."""
GRAMMARS = ("json_schema", "regex", "grammar")
"""Options that constrain the answer by a grammar; at most one may be set."""
CONSTRAINTS = (*GRAMMARS, "reasoning_budget")
"""Options whose answers are read by a grammar, any text included."""
MAX_GRAMMAR_CHARACTERS = 2**18
MAX_CHOICES, MAX_CHOICE_LENGTH = 256, 4096
"""Limits of the option `choices`: their number, and the characters or tokens of each."""
PUBLISHED_STEP_LIMIT = 1001
"""Steps after which the published D2F loop stops. Its LoPA loop may never end (docs/reference/algorithm.md, quirk
3)."""


LENGTH, QUALITY, STRUCTURE = "Length and sampling", "Speed and quality", "Structure"
BLOCKS = "Blocks and cache"
"""Groups of options in help texts. The options of one strategy are in a group of its own."""
OPTION = "option"
"""Key of an Option in the metadata of a dataclass's field."""
MAX_STRATEGY_OPTIONS = 64


PRESET_NAME = r"[a-z][a-z0-9_-]{0,31}"
"""Regular expression of a preset's name."""


NO_PRESET = "none"
"""Value of the option `preset` that selects no preset."""


Check = Callable[[Any], Any]
"""Function that returns a value as a plain Python value, or raises BadInputError."""


class FrozenOptions(Mapping[str, Any]):
    """An immutable mapping of names to bool, int, float or str, equal to any mapping with the same items."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True, kw_only=True)
class Option:
    """The properties of a decoding option."""

    name: str = ""
    """Name, by default that of the field that declares the option."""
    kind: Any = None
    """Type of its values: of the field that declares the option, or otherwise by default of the default value."""
    help: str
    group: str = ""
    advanced: bool = True
    """True if the command line lists the option only with --help-all."""
    default: Any = None
    """Value of the option if nobody sets it; None if there is no constant one. An option of a strategy may have a
    function that returns it for a value of max_new_tokens."""
    documented_default: str = ""
    """Description of a default that is not a constant."""
    conditional: bool = False
    """True if a parameters has the default, but other options are checked as if this one had no value."""
    in_config: bool = False
    """True if every config has a value: the default, which None does not replace by another one."""
    per_request: bool = False
    """True if only requests can set the option."""
    min: float = 0
    max: float = 1e9
    above: bool = False
    """True if a number has to exceed `min`."""
    infinite: bool = False
    """True if infinity is allowed."""
    check: Check | None = None
    """Check of a value; None for a check of the field's type, and of a number from `min` to `max`."""
    command_help: str = ""
    """Help text of the command line, if a value is given differently there."""

    @property
    def default_text(self) -> str:
        """The default in help texts; empty without one."""
        return self.documented_default or ("" if self.default in (None, ()) else str(self.default))

    @property
    def value_kind(self) -> Any:
        """Type of the values."""
        return type(self.default) if self.kind is None else self.kind

    def checked(self, value: Any) -> Any:
        """Return `value`, which is not None, as a plain Python value. Raises BadInputError for an invalid value."""
        if self.check is not None:
            return self.check(value)
        kind = self.value_kind
        if kind is bool:
            return check_bool(self.name, value)
        if kind is int:
            return check_int(self.name, value, min=int(self.min), max=int(self.max))
        if kind is not float:
            return check_choice(self.name, value, get_args(kind))
        if self.infinite and isinstance(value, (float, np.floating)) and value == math.inf:
            return math.inf
        return check_float(self.name, value, min=self.min, max=self.max, above=self.above)

    def value(self, given: Any, max_new_tokens: int) -> Any:
        """Return the checked value `given`, or the default for None. Raises BadInputError for an invalid value."""
        if given is not None:
            return self.checked(given)
        return self.default(max_new_tokens) if callable(self.default) else self.default


def option(group: str, help: str, **properties: Any) -> Any:
    """Return the field of a dataclass that declares an option with these properties of Option."""
    declared = Option(group=group, help=help, **properties)
    return field(default=declared.default if declared.in_config else None, metadata={OPTION: declared})


def checked_preset(name: Any) -> str:
    """Return the name of a preset. The bundle determines which ones exist."""
    if not isinstance(name, str) or not re.fullmatch(PRESET_NAME, name):
        expected = f"the name of a preset of the bundle, or {NO_PRESET}"
        raise invalid_value("preset", name, expected, "set preset to one of these")
    return str(name)


def checked_branches(branches: Any) -> int | str:
    """Return a number of branches, or "auto"."""
    if isinstance(branches, str) and branches == "auto":
        return "auto"
    return check_int("branches", branches, min=1, max=MAX_BRANCHES)


def checked_temperature(temperature: Any) -> float:
    """Return 0, or a temperature within the bounds."""
    with suppress(BadInputError):
        given = check_float("temperature", temperature, min=0.0, max=MAX_TEMPERATURE)
        if not 0.0 < given < MIN_TEMPERATURE:
            return given
    expected = f"0, or a number from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
    raise invalid_value("temperature", temperature, expected, "use 0 to decode greedily, and e.g. 0.7 to draw")


def checked_seed(seed: Any) -> int | None:
    """Return a seed, or None for a random one, as which -1 (as in vLLM and llama.cpp) and "random" count."""
    if isinstance(seed, str) and seed == "random":
        return None
    with suppress(BadInputError):
        number = check_int("seed", seed, min=-1, max=MAX_SEED)
        return None if number == -1 else number
    raise invalid_value("seed", seed, f"a whole number from 0 to {MAX_SEED}", "use -1 or random for a random seed")


def checked_strategy_options(options: Any) -> FrozenOptions:
    """Return the options of an installed strategy. The strategy checks their names and values."""
    allowed = (bool, int, float, str)
    if (
        not isinstance(options, Mapping)
        or len(options) > MAX_STRATEGY_OPTIONS
        or not all(isinstance(name, str) and isinstance(value, allowed) for name, value in options.items())
    ):
        expected = f"at most {MAX_STRATEGY_OPTIONS} names, each with a boolean, number or string as value"
        raise invalid_value("strategy_options", options, expected)
    return FrozenOptions(options)


def checked_logit_bias(biases: Any) -> FrozenOptions:
    """Return the biases by token id, as decimal text like in JSON."""
    name, expected = "logit_bias", f"at most {MAX_BIASES} token ids, each once and with a number"
    if not isinstance(biases, Mapping) or len(biases) > MAX_BIASES:
        raise invalid_value(name, biases, expected, 'e.g. {"42": -100}')
    ids = [int(each) if isinstance(each, str) and re.fullmatch("[0-9]{1,10}", each) else each for each in biases]
    tokens = [check_int("token id in logit_bias", each, min=0, max=MAX_POSITIONS) for each in ids]
    found = {
        str(token): check_float(name, bias, min=-MAX_BIAS, max=MAX_BIAS)
        for token, bias in zip(tokens, biases.values(), strict=True)
    }
    if len(found) < len(biases):
        raise invalid_value(name, biases, expected, "remove one of the two biases")
    return FrozenOptions(found)


def names_of_changed_logits(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the `options` with which logits are changed before anything else."""
    unchanged = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
    found = [name for name, value in unchanged.items() if options[name] not in (None, value)]
    return [*found, *(["logit_bias"] if any((options["logit_bias"] or {}).values()) else [])]


def checked_stop_token_ids(ids: Any) -> tuple[int, ...]:
    """Return the ids of tokens that end an answer, each once."""
    if not is_list(ids) or len(ids) > MAX_STOPS:
        raise invalid_value("stop_token_ids", ids, f"a list of at most {MAX_STOPS} token ids", "e.g. [18, 23]")
    return tuple(dict.fromkeys(check_int("stop_token_ids", each, min=0, max=MAX_POSITIONS) for each in ids))


def checked_stop(stop: Any) -> tuple[str, ...]:
    """Return the texts that end an answer, given as one text or a list.

    Empty texts, which many clients send, stop nothing, as in llama.cpp.
    """
    stop = [stop] if isinstance(stop, str) else stop
    texts = list(stop[: MAX_STOPS + 1]) if is_list(stop) else None
    if texts is None or not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise invalid_value("stop", stop if texts is None else texts, "a Unicode string, or a list of them")
    if len(texts) > MAX_STOPS or max(map(len, texts), default=0) > MAX_STOP_CHARACTERS:
        expected = f"at most {MAX_STOPS} strings of at most {MAX_STOP_CHARACTERS} characters"
        raise invalid_value("stop", texts, expected, "use fewer or shorter strings")
    return tuple(str(text) for text in texts if text)


def checked_schema(value: Any) -> str:
    """Return the text of a JSON schema, given as an object or as text. Names keep their order."""
    received, expected = f"invalid json_schema {shown(value)}", "a JSON schema (an object)"
    with errors_as_bad_input(received, expected=expected, remedy="correct json_schema"):
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, Mapping):
            return check_grammar("json_schema", json.dumps(dict(schema), ensure_ascii=False, allow_nan=False))
    raise invalid_value("json_schema", value, expected)


def check_grammar(name: str, value: Any) -> str:
    """Return the text of a grammar."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_GRAMMAR_CHARACTERS or not is_unicode(value):
        raise invalid_value(name, value, f"Unicode text of 1 to {MAX_GRAMMAR_CHARACTERS} characters")
    return str(value)


def checked_choices(choices: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return the answers to choose from: texts, and token IDs whose range the bundle determines."""
    given = choices[: MAX_CHOICES + 1] if is_list(choices) else ()
    if not 1 <= len(given) <= MAX_CHOICES:
        expected = f"a list of 1 to {MAX_CHOICES} texts or lists of token IDs"
        raise invalid_value("choices", choices, expected, 'e.g. ["yes", "no"]')
    return tuple(map(_checked_choice, given))


def _checked_choice(choice: Any) -> str | tuple[int, ...]:
    is_text = isinstance(choice, str)
    if (is_text or is_list(choice)) and 0 < len(choice) <= MAX_CHOICE_LENGTH:
        if is_text and is_unicode(choice):
            return str(choice)
        if not is_text:
            return tuple(check_int("choices", each, min=0, max=MAX_POSITIONS) for each in choice)
    expected = f"Unicode texts or lists of token IDs, each with 1 to {MAX_CHOICE_LENGTH} characters or IDs"
    raise invalid_value("choices", choice, expected, "correct this choice")
