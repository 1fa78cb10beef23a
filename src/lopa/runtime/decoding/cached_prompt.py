"""The start of a decode some of whose prompt rows are in the cache already."""

from lopa.runtime.decoding.extension import Extension, Start
from lopa.runtime.state.branch import Branch, first_branch
from lopa.runtime.state.context import Context


def cached_prompt(count: int) -> Extension:
    """Return the extension with which the rows of the first `count` positions, finished blocks, are cached."""

    def start(context: Context, branches: tuple[Branch, ...]) -> Start:
        layout = branches[-1].layout
        return context, (first_branch(branches[-1].tokens[: layout.prompt], layout, context, cached=count),)

    return Extension(start=start)
