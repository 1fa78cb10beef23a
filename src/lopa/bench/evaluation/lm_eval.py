"""Run lm-eval with the model `lopa`: python -m lopa.bench.evaluation.lm_eval run --model lopa ...

lm-eval 0.4.13 does not discover models of other packages. Such models must be registered before its command runs.
"""

import importlib
import sys

from lopa.runtime.errors import LopaError
from lopa.runtime.extra import extra_needed


def main() -> None:
    """Run lm-eval on sys.argv. Errors are printed as by `lopa-export`, with the same exit codes."""
    try:
        _register()
        importlib.import_module("lm_eval.__main__").cli_evaluate()
    except LopaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _register() -> None:
    with extra_needed("eval", {"lm_eval"}, "lm_eval 0.4.13 or newer"):
        importlib.import_module("lm_eval")
    import lopa.bench.evaluation.lm_eval_model  # noqa: F401  # registers itself


if __name__ == "__main__":
    main()
