"""Translation of former flags of `bench`, such as --quality EVAL, to the present subcommands, for error messages."""

from collections.abc import Collection, Sequence

_FORMER_FLAGS = {
    "--quality": "quality",
    "--speed": "speed",
    "--costs": "costs",
    "--decodes": "decodes",
    "--cold": "cold",
    "--devices": "scaling",
}
"""Subcommands by the flag that requested the benchmark."""
_VALUE_OF_FLAG = {"--quality": None, "--decodes": "--branches", "--devices": "--devices"}
"""Flags that had a value, with the option that takes it now; None for a positional argument."""
_WITHOUT_VALUE = ("--resume", "--adapter-apart", "-q", "--quiet", "-v", "--verbose", "-h", "--help")


def present_spelling(args: Sequence[str], subcommands: Collection[str]) -> list[str] | None:
    """Return the command line that replaces `args` of `bench`; None if they do not use the former flags."""
    words = [word for arg in args for word in _split(arg)]
    positional = next((word for word in words if not word.startswith("-")), None)
    if positional in subcommands or not any(word in _FORMER_FLAGS for word in words):
        return None
    name, values, bundle, options = "", list[str](), "BUNDLE", list[str]()
    left = iter(words)
    for word in left:
        if word in _FORMER_FLAGS and not name:
            name = _FORMER_FLAGS[word]
            if word in _VALUE_OF_FLAG:
                option, value = _VALUE_OF_FLAG[word], next(left, "VALUE")
                values = [value] if option is None else [option, value]
        elif word in _VALUE_OF_FLAG:  # a second benchmark, which the message omits
            next(left, None)
        elif word in _FORMER_FLAGS:
            continue
        elif not word.startswith("-"):
            bundle = word
        elif word in _WITHOUT_VALUE:
            options.append(word)
        else:
            options += [word, next(left, "VALUE")]
    return ["lopa-export", "bench", name, bundle, *values, *options]


def _split(arg: str) -> list[str]:
    """Return flag and value of "--flag=value", and any other argument as it is."""
    flag, sign, value = arg.partition("=")
    return [flag, value] if sign and flag.startswith("--") else [arg]
