"""The table of kinds. A kind is a function that makes the case of a random state; a new one is a line here."""

from tools.fuzz.bundles import (
    costs_case,
    dimensions_case,
    engine_case,
    gears_case,
    graph_case,
    links_case,
    manifest_case,
    tokenizer_case,
    weights_case,
)
from tools.fuzz.checkpoints import checkpoint_case
from tools.fuzz.grammars import grammar_case
from tools.fuzz.http import http_case
from tools.fuzz.requests import (
    command_case,
    config_case,
    lines_case,
    prompt_case,
    template_case,
)
from tools.fuzz.tokenizers import chains_case
from tools.fuzz.writers import writers_case
from tools.fuzz_case.case import MakeCase

KINDS: dict[str, MakeCase] = {
    "manifest": manifest_case,
    "dimensions": dimensions_case,
    "graph": graph_case,
    "weights": weights_case,
    "links": links_case,
    "costs": costs_case,
    "gears": gears_case,
    "engine": engine_case,
    "tokenizer": tokenizer_case,
    "grammar": grammar_case,
    "chains": chains_case,
    "template": template_case,
    "checkpoint": checkpoint_case,
    "lines": lines_case,
    "config": config_case,
    "prompt": prompt_case,
    "command": command_case,
    "writers": writers_case,
    "http": http_case,
}
