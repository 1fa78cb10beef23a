"""One release from a commit to a folder of files, step by step. Knows no command line and uploads nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.errors import CheckFailedError
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL
from tools.release.build import Archives, archives_of_tree, check_equal
from tools.release.environment import environment_of_interpreter
from tools.release.interpreters import Interpreter, interpreter_here, promised_versions
from tools.release.programs import Programs, check_metadata
from tools.release.sbom import write_sbom
from tools.release.smoke import Answers, answers_of_checkout, try_runtime, try_server
from tools.release.source import Source
from tools.release.tree import tree_of_commit

NAME = "lopa-export"
SUMS = "SHA256SUMS"
_PROMPTS = 3


@dataclass(frozen=True)
class Run:
    """Where a release is made, of what, and what has become of its steps so far."""

    checkout: Path
    source: Source
    programs: Programs
    output: Path
    """A folder that is there, for what is given away."""
    work: Path
    """Another, for everything else."""
    say: Callable[[str], None]
    rows: list[tuple[str, str]] = field(default_factory=list)

    def done(self, step: str, result: str) -> None:
        """Note a step, and say it."""
        self.rows.append((step, result))
        self.say(f"{step}: {result}")


def make_release(run: Run) -> None:
    """Fill `run.output`. Raises CheckFailedError at the first step that fails."""
    standing = "tagged" if run.source.tagged else "no tag here: a rehearsal"
    run.done("commit", f"{run.source.commit[:12]}, {standing}")
    archives = _built_twice(run)
    check_metadata(run.programs, run.work / "first" / "pyproject.toml", [archives.wheel, archives.sdist])
    run.done("metadata", "validate-pyproject, twine check --strict, check-wheel-contents")
    answers = _answers(run)
    interpreters = [interpreter_here(each) for each in promised_versions(run.work / "first" / "pyproject.toml")]
    _describe(run, archives, _first_of(interpreters))
    for interpreter in interpreters:
        _try(run, archives, interpreter, answers)
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(run.output.iterdir())}
    (run.output / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    run.done("files", ", ".join([*digests, SUMS]))


def _built_twice(run: Run) -> Archives:
    """The second time in a folder with another name, as far from the first as one machine allows."""
    built = []
    for tree, output in (("first", run.output), ("second build", run.work / "again")):
        (run.work / tree).mkdir()
        tree_of_commit(run.checkout, run.source.commit, run.work / tree)
        python = run.programs.path("python")
        built.append(archives_of_tree(run.work / tree, output, epoch=run.source.epoch, python=python))
    check_equal(*built)
    run.done("two builds", "the same bytes")
    return built[0]


def _answers(run: Run) -> Answers:
    """Of a bundle that the checkout exports: what every installed wheel has to answer."""
    bundle = run.work / "bundle"
    bundle_from_checkpoint(CHECKPOINT, bundle, lora=ADAPTER)
    answers = answers_of_checkout(bundle, [item.prompt for item in eval_set_from_jsonl(EVAL)[:_PROMPTS]])
    run.done("a bundle of the checkout", f"{len(answers.texts)} texts to compare with")
    return answers


def _first_of(interpreters: list[Interpreter]) -> Path:
    """Raises CheckFailedError where none is there."""
    for interpreter in interpreters:
        if interpreter.program is not None:
            return interpreter.program
    raise CheckFailedError(
        f"none of {', '.join(each.promised for each in interpreters)} is here",
        expected="an interpreter to install the wheel for",
        remedy="install one, on PATH or with pyenv",
    )


def _describe(run: Run, archives: Archives, program: Path) -> None:
    """What the wheel brings without extras, since an extra is for whoever asks for it."""
    environment = environment_of_interpreter(program, run.work / "described", run.work / "first" / "constraints.txt")
    environment.install(archives.wheel)
    output = run.output / f"{NAME.replace('-', '_')}-{run.source.version}.cdx.json"
    digest = archives.digests()[archives.wheel.name]
    others = write_sbom(run.programs, environment.folder, NAME, (archives.wheel.name, digest), output, run.source.epoch)
    run.done("bill of materials", f"{output.name}: the wheel and {others} packages")


def _try(run: Run, archives: Archives, interpreter: Interpreter, answers: Answers) -> None:
    if interpreter.program is None:
        run.done(f"Python {interpreter.promised}", "skipped: there is none here, neither on PATH nor among pyenv's")
        return
    constraints = run.work / "first" / "constraints.txt"
    environment = environment_of_interpreter(interpreter.program, run.work / interpreter.promised, constraints)
    environment.install(archives.wheel)
    try_runtime(environment, run.source.version, answers)
    environment.install(archives.wheel, "serve")
    try_server(environment, answers)
    run.done(f"Python {interpreter.version}", "the wheel decodes the same alone, and with [serve] over HTTP")
