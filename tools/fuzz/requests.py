"""Cases from a caller's inputs: chat templates, options, prompts, JSON lines and command lines."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lopa import Decoder, GenerationConfig
from lopa.runtime.text.chat_template import RenderedChat
from tools.fuzz.case import VERIFY_SECONDS, Case, Material
from tools.fuzz.decode import PROMPT, answer_of_bundle, answer_of_decoder, run_command
from tools.fuzz.mutations import TEXTS, changed_bytes, changed_json, number, short, text_of_json, value

_ATOMS = (
    *("messages", "messages[0]", "messages[-1].content", "bos_token", "loop", "self", "namespace(a=1)", "x", "none"),
    *("''", "'x'", "'x' * 1000", "'é'", "1", "-1", "0", "10**9", "2**63", "10**10", "99999", "1e300", "0.5", "true"),
    *("[]", "{}", "[1, 2, 3]", "{'a': [1]}", "range(10)", "range(10**9)", "range(99999)", "lipsum", "cycler(1, 2)"),
    *("joiner()", "messages.__class__", "''.__class__.__mro__", "''.format", "strftime_now('%Y')"),
    *("raise_exception('no')", "dict"),
)
_FILTERS = (
    *("upper", "center({n})", "indent({n})", "replace('x', 'xx')", "replace('', 'y')", "join(',')", "list", "length"),
    *("tojson", "tojson(indent={n})", "format({n})", "string", "int", "float", "abs", "round({n})", "batch({n})"),
    *("slice({n})", "sort", "unique", "reverse", "map('upper')", "select", "sum", "max", "truncate({n})"),
    *("wordwrap({n})", "wordcount", "urlize", "xmlattr", "pprint", "items", "dictsort", "groupby('role')"),
    *("filesizeformat", "random", "default('x')", "first", "last", "attr('x')", "trim", "title", "capitalize"),
    *("striptags", "escape", "safe"),
)
_METHODS = (
    *("upper()", "strip()", "split()", "split('')", "join(['a'] * {n})", "ljust({n})", "rjust({n})", "zfill({n})"),
    *("center({n})", "replace('', 'x' * {n})", "format({n})", "format_map({{}})", "encode()", "append(1)", "items()"),
    *("expandtabs({n})", "startswith('x')", "count('')", "find('')", "title()", "translate({{}})", "partition('x')"),
)
_TAGS = ("include 'x'", "extends 'x'", "import 'x' as y", "generation %}x{% endgeneration")
_OPERATORS = ("+", "-", "*", "**", "/", "//", "%", "~", "==", "<", "in", "and", "or", "is")


def template_case(rng: random.Random, folder: Path, material: Material) -> Case:  # noqa: ARG001
    """Render a generated template, or a valid one with changed bytes, with random messages."""
    if rng.random() < 0.2:
        good = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}{{ bos_token }}"
        data, _ = changed_bytes(rng, good.encode())
        template = data.decode("utf-8", "replace")
    else:
        template = "".join(_statement(rng, 0) for _ in range(rng.choice([1, 1, 2, 3])))
    messages: Any = [{"role": "user", "content": "Hello <|mask|>"}, {"role": "assistant", "content": "x" * 50}]
    if rng.random() < 0.3:
        messages, _ = changed_json(rng, messages)

    def run() -> None:
        chat = RenderedChat(template, messages, {"bos_token": "<|b|>"}, name="the template")
        if len(chat.marks) != len(chat.text):
            raise RuntimeError(f"the template gave {len(chat.marks)} marks for {len(chat.text)} characters")

    return Case(short(template), run)


def _statement(rng: random.Random, depth: int) -> str:
    inner = "".join(_statement(rng, depth + 1) for _ in range(rng.randrange(3))) if depth < 4 else "x"
    one, other = _expression(rng, 0), _expression(rng, 0)
    choices = [
        f"{{{{ {one} }}}}",
        f"{{{{ {one} }}}}",
        f"{{% for i in {one} %}}{inner}{{% endfor %}}",
        f"{{% for i in {one} recursive %}}{inner}{{{{ loop(i) }}}}{{% endfor %}}",
        f"{{% if {one} %}}{inner}{{% else %}}{other}{{% endif %}}",
        f"{{% set x = {one} %}}{inner}",
        f"{{% set x = x + x %}}{inner}",
        f"{{% set x %}}{inner}{{% endset %}}{{{{ x * 3 }}}}",
        f"{{% macro f(a) %}}{inner}{{{{ f(a) }}}}{{% endmacro %}}{{{{ f({one}) }}}}",
        f"{{% set n = namespace(a='x') %}}{{% for i in {one} %}}{{% set n.a = n.a + n.a %}}{{% endfor %}}",
        f"{{% filter {rng.choice(_FILTERS).format(n=_size(rng))} %}}{inner}{{% endfilter %}}",
        f"{{% call f() %}}{inner}{{% endcall %}}",
        f"{{% {rng.choice(_TAGS)} %}}",
        "{% break %}{% continue %}",
        inner * rng.choice([1, 2, 100]),
    ]
    return rng.choice(choices)


def _expression(rng: random.Random, depth: int) -> str:
    if depth > 3 or rng.random() < 0.3:
        return rng.choice(_ATOMS)
    inner = _expression(rng, depth + 1)
    choices = [
        f"({inner} {rng.choice(_OPERATORS)} {_expression(rng, depth + 1)})",
        f"({inner} {rng.choice(['*', '**', '~'])} {_expression(rng, depth + 1)})",
        f"({inner}) | {rng.choice(_FILTERS).format(n=_size(rng))}",
        f"({inner}).{rng.choice(_METHODS).format(n=_size(rng))}",
        f"({inner})[{_expression(rng, depth + 1)}:]",
        f"({inner})[{_expression(rng, depth + 1)}]",
        f"'%{_size(rng)}d' | format({inner})",
        f"'{{:>{_size(rng)}}}'.format({inner})",
        f"[{inner}] * {_size(rng)}",
        f"range({inner}) | list",
        f"({inner} if {inner} else {inner})",
    ]
    return rng.choice(choices)


def _size(rng: random.Random) -> object:
    return rng.choice([0, 1, -1, 3, 1000, 10**5, 10**6, 10**8, 10**10, 2**63, 10**30, "'x'", "none", "1.5"])


_OPTION_NAMES = tuple(GenerationConfig.__dataclass_fields__)
_OPTION_WORDS = (
    *("lopa", "d2f", "threshold", "vanilla", "auto", "neg_entropy", "probability", "margin", "block_causal"),
    *("causal", "absolute", "sliding"),
)


def config_case(rng: random.Random, folder: Path, material: Material) -> Case:  # noqa: ARG001
    """Decode with options by name, read by GenerationConfig.from_mapping."""
    options: dict[Any, Any] = {"max_new_tokens": 8, "block_size": 8}
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice(_OPTION_NAMES) if rng.random() < 0.95 else rng.choice([*TEXTS, 5, None])
        kinds = [number(rng), number(rng), value(rng), rng.choice(_OPTION_WORDS), rng.choice([True, False, 1, 4, 0.7])]
        options[name] = rng.choice(kinds)

    def run() -> object:
        return answer_of_bundle(material.bundle, config=GenerationConfig.from_mapping(options))

    # Any decode within the tiny model's 2048 positions ends within the time limit.
    return Case(short(options), run)


def prompt_case(rng: random.Random, folder: Path, material: Material) -> Case:  # noqa: ARG001
    """Decode prompts of any type, singly or as a list."""
    prompts: list[Any] = [
        *(value(rng) for _ in range(3)),
        rng.choice(TEXTS) * rng.choice([1, 1, 100]),
        [rng.choice([0, 1, 5, 1023, 1024, -1, 2**63, 10**30, 1.5, None, True, "5"]) for _ in range(rng.randrange(5))],
        [3] * rng.choice([1, 2039, 2040, 2041, 10**6]),
        b"bytes",
        object(),
    ]
    chosen = rng.choice(prompts)
    is_batch = rng.random() < 0.4

    def run() -> object:
        with Decoder.open(material.bundle, threads=1) as decoder:
            config = decoder.config(max_new_tokens=8, block_size=8)
            if is_batch:
                return [len(result.token_ids) for result in decoder.generate([PROMPT, chosen], config, max_num_seqs=2)]
            return answer_of_decoder(decoder, config, chosen)

    return Case(f"{'generate' if is_batch else 'stream'} {short(chosen)}", run)


def lines_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Run generate --prompts on valid and invalid lines."""
    good: list[Any] = [
        {"prompt": PROMPT},
        {"prompt_ids": [1, 5, 6]},
        {"id": "a", "prompt": "x", "max_new_tokens": 8},
        {"messages": [{"role": "user", "content": "2 + 2?"}], "id": 5},
        {"custom_id": "r", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 4}},
    ]
    lines = []
    for _ in range(rng.randrange(1, 4)):
        line = rng.choice(good)
        if rng.random() < 0.8:
            line, _ = changed_json(rng, line)
        lines.append(text_of_json(rng, line))
    text = b"\n".join(lines)
    if rng.random() < 0.4:
        text, _ = changed_bytes(rng, text)
    (folder / "in.jsonl").write_bytes(text)
    options = ["--max-new-tokens", 8, "--threads", 1, *(["--max-num-seqs", 3] if rng.random() < 0.3 else [])]

    def run() -> None:
        run_command("generate", material.bundle, "--prompts", folder / "in.jsonl", "--output", folder / "out", *options)
        for line in (folder / "out").read_bytes().splitlines():
            if not isinstance(json.loads(line), dict):
                raise RuntimeError("a line of the output is not a JSON object")

    return Case(short(text), run)


_FLAGS = (
    *("--max-new-tokens", "--branches", "--block-size", "--temperature", "--top-k", "--top-p", "--seed", "--stop"),
    *("--time-limit", "--skip-threshold", "--strategy", "--confidence", "--attention", "--device", "--threads"),
    *(
        "--output",
        "--step-log",
        "--prompts",
        "--max-num-seqs",
        "--system",
        "--chat",
        "--drafts",
        "--resume",
    ),
)


def command_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Run command lines. Paths are in the case's folder, some of them unusual."""
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    paths = ["file", "loop", "folder", "file/below", "n" * 250, ".", "missing/out", "new", "folder/", "loop/x"]
    names = ["cpu", "cpu:0-3", "cpu:99", "numpy", "cuda:0", "ascend:0", "tensorrt:0", "mpi", "cpu+cpu", "cpu:", "auto"]
    arguments: list[object] = [rng.choice(["generate", "generate", "generate", "inspect", "verify", "plan", "onnx"])]
    arguments.append(material.bundle if rng.random() < 0.8 else folder / rng.choice(paths))
    if arguments[0] == "generate":
        arguments += [PROMPT, "--max-new-tokens", 8]
    for _ in range(rng.randrange(3)):
        flag = rng.choice(_FLAGS)
        arguments.append(flag)
        if flag in ("--output", "--step-log", "--prompts"):
            arguments.append(folder / rng.choice(paths))
        elif flag not in ("--chat", "--drafts", "--resume"):
            arguments.append(rng.choice([number(rng), rng.choice(names), rng.choice(TEXTS).replace("\0", "")]))
    if arguments[0] in ("plan", "onnx"):
        arguments += ["-o", folder / rng.choice(paths)]
    shown = " ".join(str(each) for each in arguments)
    run: Callable[[], object] = lambda: run_command(*arguments)  # noqa: E731
    seconds = VERIFY_SECONDS if arguments[0] == "verify" else 0
    words = short(shown.replace(str(folder), "").replace(str(material.bundle), "BUNDLE"))
    return Case(words, run, processor_seconds=seconds)
