"""The start of a decode whose answer satisfies a grammar.

The rest of a grammar belongs to its branch: `state.reading` advances it, and `constrained` asks it in a round.
"""

from dataclasses import replace

from lopa.runtime.decoding.extension import Extension, Start
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.context import Context


def constraint(grammar: BranchGrammar) -> Extension:
    """Return the extension whose answer satisfies `grammar`, in its first state."""

    def start(context: Context, branches: tuple[Branch, ...]) -> Start:
        final = grammar if context.params.edits else None
        return context, (*branches[:-1], replace(branches[-1], grammar=grammar, final_grammar=final))

    return Extension(start=start)
