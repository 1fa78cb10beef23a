"""Answers to tables of prompts on a Ray cluster: actors of Ray Data with an engine each (docs/how-to/prompt-files.md).

A row that cannot be used gets an error in its column `error`. The rows of a killed actor are decoded again by a
restarted one. With a checkpoint, an interrupted run continues after the rows that are written.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lopa.batch.row_answers import ANSWER_FIELDS, answers_to_rows
from lopa.runtime.bundle import Bundle
from lopa.runtime.checked_values import check_float, check_int
from lopa.runtime.engine import MAX_NUM_SEQS, Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.extra import extra_needed
from lopa.runtime.generation_config import GenerationConfig, GenerationOptions

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

_MODULES = {"ray", "pyarrow", "pandas"}
_SPARE_CPUS = 2
"""Processors that reading, writing and the filter of a checkpoint use besides the actors'. Without them Ray waits
without a message.
"""
_READERS = {".jsonl": "read_json", ".json": "read_json", ".parquet": "read_parquet"}


def answer_dataset(
    dataset: "Dataset",
    bundle: Path | str,
    *,
    actors: int = 1,
    batch_size: int = 64,
    max_num_seqs: int = MAX_NUM_SEQS,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    **options: Unpack[GenerationOptions],
) -> "Dataset":
    """Return `dataset` with an answer to each row, as the columns of lopa.batch.row_answers.ANSWER_FIELDS.

    A row has a column `prompt` (text), `prompt_ids` or `messages`. Decoding options by name in its column `lopa`
    replace `options` for this row; all other columns are only kept. `actors` processes each open `bundle`, whose path
    exists on every node, on `devices` with `threads`, and reserve `cpus` and `gpus`. An actor takes `batch_size` rows
    at a time, of which `max_num_seqs` share every forward.

    Nothing runs until the result is used. Raises BadInputError for invalid arguments and for a dataset with a column
    that an answer would replace. Raises it too for a cluster with too few processors: the actors need theirs and two
    more. Raises MissingBackendError without Ray Data.
    """
    for name, value, most in (("actors", actors, 10**4), ("batch_size", batch_size, 10**5)):
        check_int(name, value, min=1, max=most)
    check_float("cpus", cpus, min=0.0, max=10**4)
    check_float("gpus", gpus, min=0.0, max=10**4)
    with _ray_needed():
        import ray
        from ray.data import ActorPoolStrategy
    config = GenerationConfig.from_mapping(options)
    Bundle.open(bundle).manifest.params(config, devices)
    replaced = sorted(set(dataset.schema().names) & set(ANSWER_FIELDS))
    if replaced:
        raise BadInputError(
            f"the dataset has a column {replaced[0]!r}",
            expected="no column among " + ", ".join(ANSWER_FIELDS),
            remedy="rename it, e.g. with dataset.rename_columns",
        )
    needed, found = actors * cpus + _SPARE_CPUS, ray.cluster_resources().get("CPU", 0.0)
    if found < needed:
        raise BadInputError(
            f"a cluster of {found:g} CPUs",
            expected=f"at least {needed:g}: {cpus:g} for each of {actors} actors, and {_SPARE_CPUS} to read and write",
            remedy="use fewer actors, or start Ray with more: ray.init(num_cpus=N) counts any number",
        )

    # A class made here carries its settings. Ray may lose the arguments of a constructor when an actor restarts.
    class RowAnswerer:
        """Actor that holds an engine."""

        def __init__(self) -> None:
            self._engine = Engine.open(
                bundle, devices, threads=threads, max_num_seqs=max_num_seqs, queue_limit=batch_size
            )

        def __call__(self, batch: "pyarrow.Table") -> "pyarrow.Table":
            return table_with_answers(batch, answers_to_rows(self._engine, batch.to_pylist(), options))

    answered: Dataset = dataset.map_batches(
        RowAnswerer,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )
    return answered


def answer_files(
    source: Path | str,
    target: Path | str,
    bundle: Path | str,
    *,
    checkpoint: Path | str | None = None,
    id_column: str = "id",
    **arguments: Any,
) -> None:
    """Answer the rows of `source` (JSON lines or Parquet, a file or a folder of them) and write Parquet to `target`.

    With `checkpoint`, a folder, an interrupted run continues where the same call is made again: rows that are written
    are not decoded again. They are recognized by `id_column`, whose values must differ. The folder is removed at the
    end. `arguments` are those of `answer_dataset`. Rows keep their order.

    Raises BadInputError as `answer_dataset` does, for a source of another format, and for a checkpoint without ids.
    """
    with _ray_needed():
        import ray
        from ray.data import DataContext
        from ray.data.checkpoint import CheckpointConfig
    reader = getattr(ray.data, _READERS[_format_of(Path(source))])
    if not ray.is_initialized():
        ray.init()
    context = DataContext.get_current()
    before = context.checkpoint_config, context.execution_options.preserve_order
    try:
        context.execution_options.preserve_order = True
        if checkpoint is not None:
            context.checkpoint_config = CheckpointConfig(id_column=id_column, checkpoint_path=str(checkpoint))
        dataset = reader(str(source))
        if checkpoint is not None and id_column not in dataset.schema().names:
            raise BadInputError(
                f"a checkpoint, but {source} has no column {id_column!r}",
                expected="a column with a different value in each row",
                remedy="add one, name it with id_column, or omit checkpoint",
            )
        answer_dataset(dataset, bundle, **arguments).write_parquet(str(target))
    finally:
        context.checkpoint_config, context.execution_options.preserve_order = before


def table_with_answers(batch: "pyarrow.Table", answers: Sequence[dict[str, Any]]) -> "pyarrow.Table":
    """Return `batch` with the columns of the answers, one for each of its rows."""
    import pyarrow

    kinds = {
        "text": pyarrow.string(),
        "token_ids": pyarrow.list_(pyarrow.int64()),
        "stop_reason": pyarrow.string(),
        "seconds": pyarrow.float64(),
        "error": pyarrow.string(),
    }
    for name in ANSWER_FIELDS:
        values = pyarrow.array([each[name] for each in answers], kinds.get(name, pyarrow.int64()))
        batch = batch.append_column(name, values)
    return batch


def _format_of(source: Path) -> str:
    """Return the ending of `source`, or of the first file in it."""
    files = sorted(each for each in source.rglob("*") if each.is_file()) if source.is_dir() else [source]
    found = files[0].suffix if files else ""
    if found not in _READERS:
        raise BadInputError(
            f"{source}: files ending in {found!r}",
            expected="files ending in " + ", ".join(_READERS),
            remedy="rename or convert them, or read them yourself and call answer_dataset",
        )
    return found


@contextmanager
def _ray_needed() -> Iterator[None]:
    with extra_needed("ray-data", _MODULES, "Ray Data"):
        yield
