"""Each interface is tried with each option and input, and the table of docs/how-to/interfaces.md says what it can do.

`LOPA_WRITE_INTERFACES=1 pytest tests/interfaces` writes the table.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import HERMES, with_chat_template
from tests.deploy.cpp_program import built_program, run
from tests.interfaces.capabilities import (
    FULL,
    INPUTS,
    LOGITS,
    MESSAGES,
    NEEDS,
    PARTS,
    PROMPT,
    REVISION,
    SIZE,
    STRATEGY_OPTIONS,
    STREAMED,
    TEMPLATE,
    TOOL,
    compare_or_write,
    tried,
)
from tests.serve.chromium import chromium, in_chromium
from tests.serve.servers import Server, serving
from tests.serve.triton.stand_in import Loaded, TritonError
from tests.web.installed import WEB, no_web, run_node
from tests.web.static_host import FilesAndBundles, hosted

from lopa import BadInputError, Chat, Decoder, DraftEvent, Hole, TextEvent


@pytest.fixture(scope="module")
def bundle(export_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that supports every option: with logits, a chat template with tools, and without D2F's adapter,
    so that it fills holes.
    """
    plain = export_tiny(lora=None, with_logits=True)
    return with_chat_template(plain, tmp_path_factory.mktemp("interfaces") / "bundle", HERMES)


def is_accepted(call: Callable[[], object]) -> bool:
    """Return whether a call succeeds. It may be refused by name, but not fail otherwise."""
    try:
        call()
    except BadInputError:
        return False
    return True


def column_of_python(bundle: Path, **fill_options: Any) -> dict[str, str]:
    """Return Python's column with a bundle, and with options for its holes."""
    with Decoder.open(bundle, threads=1) as decoder:

        def events(**options: Any) -> list[object]:
            return list(decoder.stream(PROMPT, **STREAMED, **options))

        def cancels() -> bool:
            stream = decoder.stream(PROMPT, max_new_tokens=512, drafts=True)
            next(stream)
            stream.close()
            return decoder.generate(PROMPT, max_new_tokens=1).tokens == 1  # the next request runs

        return tried(
            lambda options: is_accepted(lambda: decoder.generate(PROMPT, **{"max_new_tokens": SIZE, **options})),
            {
                "chats": lambda: is_accepted(lambda: decoder.generate(Chat(MESSAGES), max_new_tokens=SIZE)),
                "tools": lambda: is_accepted(
                    lambda: decoder.generate(Chat(MESSAGES, tools=[TOOL]), max_new_tokens=SIZE)
                ),
                "holes": lambda: is_accepted(
                    lambda: decoder.fill([PARTS[0]["text"], Hole(2), PARTS[2]["text"]], **fill_options)
                ),
                REVISION: lambda: is_accepted(
                    lambda: decoder.revise("There are 4 eggs.", spans=[(10, 11)], **fill_options)
                ),
                "text as it comes": lambda: len([each for each in events() if isinstance(each, TextEvent)]) > 1,
                "draft after each step": lambda: any(isinstance(each, DraftEvent) for each in events(drafts=True)),
                "cancel": cancels,
            },
        )


def test_python(bundle: Path) -> None:
    column = column_of_python(bundle)
    compare_or_write("Python", column)
    compare_or_write("needs", {row: NEEDS.get(row, "") for row in column})


@pytest.mark.parametrize("given", [LOGITS, TEMPLATE, FULL, None])
def test_needs(given: str | None, tiny_bundle: Path, tiny_bundle_logits: Path, tmp_path: Path) -> None:
    """README's bundle lacks what the table says, and nothing else."""
    found = tiny_bundle_logits if given == LOGITS else tiny_bundle
    if given == TEMPLATE:
        found = with_chat_template(found, tmp_path / "bundle", HERMES)
    column = column_of_python(found, **({"attention": "full"} if given == FULL else {}))
    lacking = {row for row, need in NEEDS.items() if need in {LOGITS, TEMPLATE, FULL} - {given}}
    assert {row for row, cell in column.items() if cell == "-"} == lacking


def test_strategies_without_speculative_decoding(tiny_bundle: Path) -> None:
    options = {"speculative": True, "max_new_tokens": SIZE}
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        refused = [
            name
            for name in STRATEGY_OPTIONS
            if not is_accepted(lambda name=name: decoder.generate(PROMPT, strategy=name, **options))  # type: ignore[misc]
        ]
    assert NEEDS["speculative decoding"] == f"another strategy than {' and '.join(f'`{name}`' for name in refused)}"


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    with serving(bundle) as started:
        yield started
        started.stop()


def test_server(server: Server) -> None:
    def is_answered(path: str, **body: Any) -> bool:
        answer = server.http.post(f"/v1/{path}", json={"model": "tiny", "max_tokens": SIZE, **body})
        assert answer.status_code in (200, 400), answer.text
        return bool(answer.status_code == 200)

    def lines(**body: Any) -> list[str]:
        options = {name: value for name, value in STREAMED.items() if name != "max_new_tokens"}
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 64, "stream": True, "lopa": options, **body}
        return [each for each in server.http.post("/v1/completions", json=body).text.splitlines() if each]

    def cancels() -> bool:
        body = {
            "model": "tiny",
            "prompt": PROMPT,
            "max_tokens": 1024,
            "stream": True,
            "lopa": {"strategy": "vanilla", "stop_at_eos": False},
        }
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        server.until_idle()
        return server.metric("lopa_cancelled_total") > 0

    compare_or_write(
        "server",
        tried(
            lambda options: is_answered("completions", prompt=PROMPT, lopa=options),
            {
                "chats": lambda: is_answered("chat/completions", messages=MESSAGES),
                "tools": lambda: is_answered("chat/completions", messages=MESSAGES, tools=[TOOL]),
                "holes": lambda: is_answered("completions", lopa={"parts": PARTS}),
                "text as it comes": lambda: len(lines()) > 3,
                "draft after each step": lambda: any(
                    "draft" in each for each in lines(stream_options={"include_drafts": True})
                ),
                "cancel": cancels,
            },
        ),
    )


def test_triton(
    bundle: Path,
    tmp_path: Path,
    write_model: Callable[..., Path],
    load_model: Callable[..., Loaded],
) -> None:
    """A stand-in calls the model as Triton does. `make test-triton` runs the real one."""
    model = load_model(write_model(bundle, tmp_path / "models", "--model", "tiny", "--threads", 1))

    def is_answered(options: Mapping[str, Any], **inputs: Any) -> bool:
        sender = model.ask(
            options=json.dumps({"max_new_tokens": SIZE, **options}), **(inputs or {"text_input": PROMPT})
        ).ended()
        assert sender.error is None or sender.error.code == TritonError.INVALID_ARG, sender.error.text
        return sender.error is None

    def parts(**inputs: Any) -> list[dict[str, str]]:
        return model.ask(text_input=PROMPT, options=json.dumps(STREAMED), stream=True, **inputs).ended().parts

    def cancels() -> bool:
        sender = model.ask(text_input=PROMPT, options='{"strategy": "dream", "max_new_tokens": 512}')
        sender.client_cancelled = True
        return sender.ended().parts == []

    try:
        column = tried(
            is_answered,
            {
                "chats": lambda: is_answered({}, messages=json.dumps(MESSAGES)),
                "tools": lambda: is_answered({"tools": [TOOL]}, messages=json.dumps(MESSAGES)),
                "holes": lambda: is_answered({"parts": PARTS}),
                "text as it comes": lambda: len(parts()) > 1,
                "draft after each step": lambda: any(part["draft"] for part in parts(drafts=True)),
                "cancel": cancels,
            },
        )
    finally:
        model.model.finalize()
    compare_or_write("Triton", column)


def column_of_lopa_web(answers: Mapping[str, bool]) -> dict[str, str]:
    """Return the column of what web/test/tried.mjs has tried, by options and inputs as JSON."""
    return tried(
        lambda options: answers[json.dumps(options)],
        {name: lambda name=name: answers[name] for name in set(INPUTS) & set(answers)},  # type: ignore[misc]
    )


def options_to_try() -> list[str]:
    """Return every options object that `tried` tries, as JSON."""
    found: list[str] = []

    def keep(options: Mapping[str, Any]) -> bool:
        found.append(json.dumps(options))
        return True

    tried(keep, {})
    return found


def request_of_lopa_web() -> dict[str, Any]:
    """Return what web/test/tried.mjs is to try."""
    return {
        "prompt": PROMPT,
        "messages": MESSAGES,
        "options": options_to_try(),
        "size": SIZE,
        "streamed": STREAMED,
        "tool": TOOL,
    }


@pytest.mark.web
@no_web
def test_node(bundle: Path) -> None:
    done = run_node("tried.mjs", bundle, requests=[request_of_lopa_web()])
    compare_or_write("Node", column_of_lopa_web(json.loads(done.stdout)))


@pytest.mark.web
@no_web
@in_chromium
def test_browser(bundle: Path, tmp_path: Path) -> None:
    page = (WEB / "test" / "page.html").read_text(encoding="utf-8")
    script = f"""<script type="module">
      import {{ Decoder }} from "/dist/index.js";
      import {{ tried }} from "/test/tried.mjs";
      const decoder = await Decoder.open("/bundle", {{ device: "wasm", threads: 1 }});
      globalThis.found = await tried(decoder, {json.dumps(request_of_lopa_web())});
    </script>"""
    own = tmp_path / "own"
    own.mkdir()
    (own / "index.html").write_text(page.partition('<script type="module">')[0] + script, encoding="utf-8")
    bundles = {"bundle": bundle, "own": own}
    with chromium(tmp_path, wait=300) as browser, hosted(WEB, FilesAndBundles, bundles=bundles) as address:
        browser.open(f"{address}/own/index.html")
        found = browser.until("globalThis.found")
    compare_or_write("browser", column_of_lopa_web(found))


@pytest.mark.cpp
def test_cpp(bundle: Path, tmp_path: Path) -> None:
    """The program takes options as defaults of a bundle. It always decodes with D2F."""
    program = built_program(tmp_path, "-Werror")
    original = json.loads((bundle / "manifest.json").read_text())
    with Decoder.open(bundle, threads=1) as decoder:
        ids = decoder.generate(PROMPT, max_new_tokens=1).prompt_ids
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in bundle.iterdir():
        (copy / path.name).symlink_to(path)
    (copy / "manifest.json").unlink()

    def is_answered(options: Mapping[str, Any]) -> bool:
        if options.get("strategy", "d2f") != "d2f":
            return False  # there is no argument for it
        (copy / "manifest.json").write_text(json.dumps({**original, "defaults": dict(options)}))
        done = run(program, copy, SIZE, *ids)
        assert done.returncode in (0, 2), done.stderr
        return done.returncode == 0

    compare_or_write("C++", tried(is_answered, {}))
