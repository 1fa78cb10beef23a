"""Compilation of a job with the ATC of this machine into engines/ascend-*/ of the bundle.

After a failure nothing is left there. job.py decides what is compiled. The project's tests have not run ATC, only a
stand-in for it. ATC and the version of its toolkit are found without running a program.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lopa.export.ascend.build_folder import check_build_folder
from lopa.export.ascend.call import CACHE_FOLDER, ENGINE_FOLDER, MODEL_FOLDER, AtcCall
from lopa.export.ascend.contract import codes_of_output, failure_of_output
from lopa.export.ascend.job import AscendJob
from lopa.export.staging import Product, staged_folder
from lopa.runtime.ascend.ascend_manifest import (
    ASCEND_ENGINES,
    ENGINE_SCHEMA,
    AscendEngine,
    EngineBucket,
    StoredAscendEngine,
    engine_folder,
)
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError, CheckFailedError, LopaError, MissingBackendError

ATC_LOG = "atc.log"
LOG_FOLDER = "log"
_LOG_VARIABLE = "ASCEND_PROCESS_LOG_PATH"
_ENGINE = Product("engine", ENGINE_NAME)
_ERRORS: dict[int, type[LopaError]] = {1: CheckFailedError, 2: BadInputError, 3: MissingBackendError}
_TAIL = 15
"""Lines of ATC's output in the error for an unknown failure."""
_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class AscendBuild:
    """Result of a build."""

    found: StoredAscendEngine
    cached: bool
    """True if the engine existed already and nothing was run."""


def engine_from_job(bundle: Bundle, job: AscendJob, progress: Callable[[str], None]) -> AscendBuild:
    """Return the engine of `job` in `bundle`. Build it unless an up-to-date one exists.

    `progress` receives the name of each compilation before it starts. Raises MissingBackendError without ATC. Raises a
    LopaError with the known cause if ATC fails. ATC's logs are then in engines/failed-ascend-*, and the previous engine
    is kept.
    """
    atc = atc_of_machine()
    version = cann_version(atc)
    destination = engine_folder(bundle, job.soc_version)
    present = _present_engine(destination, job.cache_key(version))
    if present is not None:
        return AscendBuild(present, cached=True)
    failed = destination.with_name(f"failed-{destination.name}")
    with staged_folder(destination, overwrite=True, product=_ENGINE) as folder:
        work = folder / "work"
        _create_work_folder(work, job)
        for call, command in zip(job.calls, job.commands, strict=True):
            progress(f"{call.name} for {call.soc_version}")
            _compile(atc, command, call, work, failed)
        for path in [*(work / ENGINE_FOLDER).iterdir(), work / ATC_LOG]:
            path.rename(folder / path.name)
        shutil.rmtree(work)
        (folder / ENGINE_NAME).write_bytes(json_from_record(_described(job, folder, version)))
    shutil.rmtree(failed, ignore_errors=True)  # logs of an earlier failure are obsolete
    return AscendBuild(ASCEND_ENGINES.read(destination), cached=False)


def engine_from_build_folder(bundle: Bundle, job: AscendJob, source: Path) -> AscendBuild:
    """Return the engine of `job` with the OMs of a folder from build_folder.py, compiled on another machine.

    Raises BadInputError if the folder has other commands, another graph or other weights, or lacks an OM.
    """
    check_build_folder(source, job)
    missing = [call.name for call in job.calls if _om_of_call(source / ENGINE_FOLDER, call) is None]
    if missing:
        raise BadInputError(
            f"{source / ENGINE_FOLDER} has no {', '.join(f'{name}.om' for name in missing)}",
            expected="an OM for each command",
            remedy="run the commands there (README.txt), and copy the complete folder back",
        )
    with staged_folder(engine_folder(bundle, job.soc_version), overwrite=True, product=_ENGINE) as folder:
        shutil.copytree(source / ENGINE_FOLDER, folder, dirs_exist_ok=True)
        (folder / ENGINE_NAME).write_bytes(json_from_record(_described(job, folder, None)))
    return AscendBuild(ASCEND_ENGINES.read(engine_folder(bundle, job.soc_version)), cached=False)


def _present_engine(folder: Path, cache_key: str) -> StoredAscendEngine | None:
    """Return the engine in `folder`, or None unless it has this cache key and its files match their digests."""
    found = ASCEND_ENGINES.with_key(folder, cache_key)
    if found is None or any(sha256_of_file(folder / record.path) != record.sha256 for record in found.engine.files):
        return None
    return found


def _create_work_folder(work: Path, job: AscendJob) -> None:
    """Create the folder in which the commands run. ATC also writes its own files there, which are discarded."""
    work.mkdir()
    (work / MODEL_FOLDER).symlink_to(job.graph.parent.resolve(), target_is_directory=True)
    (work / ENGINE_FOLDER).mkdir()
    (work / LOG_FOLDER).mkdir()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lopa-export" / "atc"
    cache.mkdir(parents=True, exist_ok=True)
    (work / CACHE_FOLDER).symlink_to(cache.resolve(), target_is_directory=True)


def _compile(atc: Path, command: list[str], call: AtcCall, work: Path, failed: Path) -> None:
    """Run ATC once. If it fails or writes no OM, keep its logs in `failed` and raise an error."""
    log = work / ATC_LOG
    with log.open("ab") as file:
        file.write(msgspec.json.encode(command) + b"\n")
        start = file.tell()
    try:
        code = run_command(
            command,
            program=atc,
            folder=work,
            log=log,
            environment={_LOG_VARIABLE: str(work / LOG_FOLDER), **os.environ},
        )
    except OSError as error:
        raise MissingBackendError(
            f"{atc} cannot be run: {error.strerror}", expected="ATC of CANN", remedy="install the toolkit again"
        ) from error
    if code == 0 and _om_of_call(work / ENGINE_FOLDER, call) is not None:
        return
    output = log.read_bytes()[start:].decode(errors="replace")
    shutil.rmtree(failed, ignore_errors=True)
    failed.mkdir(parents=True)
    for path in (log, work / LOG_FOLDER):
        path.rename(failed / path.name)
    raise _error_of_failure(code, output, call, failed)


def run_command(
    command: Sequence[str], *, program: Path, folder: Path, log: Path, environment: Mapping[str, str]
) -> int:
    """Run the file `program` with the arguments `command` (its name first) in `folder`. Append its output to `log`.

    Returns the exit code, negative for a signal. If interrupted (Ctrl-C), it first ends the process and its children,
    which form a process group.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            executable=program,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the remaining processes of the group that `process` leads."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            break  # no process is left
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)


def _error_of_failure(code: int, output: str, call: AtcCall, failed: Path) -> LopaError:
    elsewhere = os.environ.get(_LOG_VARIABLE)
    logs = f"{failed / ATC_LOG} and the folder {elsewhere or failed / LOG_FOLDER}"
    known = failure_of_output(output)
    codes = ", ".join(codes_of_output(output))
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    if code == 0:
        ended += f" but wrote no {call.name}.om"
    if known is None:
        tail = "\n    ".join(output.strip().splitlines()[-_TAIL:])
        return CheckFailedError(
            f"atc ended with {ended}{f' and {codes}' if codes else ''} on {call.name}; its last lines:\n    {tail}",
            expected="exit code 0 and an OM",
            remedy=f"read {logs}",
        )
    return _ERRORS[known.exit_code](
        f"atc ended with {ended}{f' and {codes}' if codes else ''} on {call.name}: {known.cause}",
        expected="exit code 0 and an OM",
        remedy=f"{known.remedy}; the logs are {logs}",
    )


def _om_of_call(folder: Path, call: AtcCall) -> Path | None:
    """Return the OM or None. ATC may add the operating system and the architecture to its name."""
    name = re.compile(rf"{re.escape(call.name)}(_[A-Za-z]\w*)?\.om")
    return next((path for path in sorted(folder.iterdir()) if name.fullmatch(path.name)), None)


def _described(job: AscendJob, folder: Path, version: str | None) -> AscendEngine:
    buckets = []
    for index, (bucket, numbers) in enumerate(zip(job.buckets, job.bucketed.tuples, strict=True)):
        model = _om_of_call(folder, job.call_of_bucket(index))
        assert model is not None  # checked after each call
        buckets.append(EngineBucket(bucket=bucket, dims=list(numbers), model=model.name))
    return AscendEngine(
        schema=ENGINE_SCHEMA,
        contract=CONTRACT_VERSION,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        soc_version=job.soc_version,
        precision=job.precision,
        int8=job.int8,
        dynamic=job.dynamic,
        inputs=list(job.bucketed.inputs),
        outputs=list(job.outputs),
        buckets=buckets,
        graph_sha256=job.graph_sha256,
        weights_sha256=job.weights_sha256,
        commands=job.commands,
        cann_version=version,
        cache_key=job.cache_key(version),
        files=[
            FileRecord(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=sha256_of_file(path))
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ],
    )


_INSTALL_INFO = "ascend_toolkit_install.info"


def atc_of_machine() -> Path:
    """Return the path of `atc`. Raises MissingBackendError if it is not on PATH."""
    found = shutil.which("atc")
    if found is None:
        raise MissingBackendError(
            "atc is not on PATH",
            expected="Ascend's CANN toolkit with the operator package of the chip",
            remedy="install both, then `source set_env.sh` of the toolkit in this shell; or use --dry-run to write a "
            "folder for a machine that has them",
        )
    return Path(found)


def cann_version(atc: Path) -> str | None:
    """Return the version in the toolkit's install file; None without such a file or line.

    The toolkit's folder comes from the environment (set_env.sh), or is one of the parent folders of `atc`.
    """
    homes = [os.environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")]
    folders = [Path(home) for home in homes if home] + list(atc.resolve().parents[:4])
    for folder in folders:
        path = folder / f"{platform.machine()}-linux" / _INSTALL_INFO
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            versions = [line.partition("=")[2].strip() for line in lines if line.startswith("version=")]
            return next(iter(versions), None)
    return None
