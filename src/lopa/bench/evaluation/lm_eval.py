"""lm-eval's own command line, with the model `lopa`: python -m lopa.bench.evaluation.lm_eval run --model lopa ...

lm-eval 0.4.13 finds the models of other packages in no other way than this, which its documentation calls external
library usage: they register themselves, then its command runs.
"""

import importlib
import sys

from lopa.runtime.errors import LopaError
from lopa.runtime.extra import extra_needed


def main() -> None:
    """Run lm-eval on sys.argv; our errors are told as `lopa-export` tells them, with its exit codes."""
    try:
        _registered()
        importlib.import_module("lm_eval.__main__").cli_evaluate()
    except LopaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _registered() -> None:
    with extra_needed("eval", {"lm_eval"}, "lm_eval 0.4.13 or newer"):
        importlib.import_module("lm_eval")
    import lopa.bench.evaluation.lm_eval_model  # noqa: F401  # registers itself


if __name__ == "__main__":
    main()
