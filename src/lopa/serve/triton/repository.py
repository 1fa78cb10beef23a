"""Model repository on disk: config.pbtxt, model.py and a bundle for each model. This module runs nothing."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lopa.export.staging import Product, staged_folder
from lopa.runtime.bundle import Bundle
from lopa.runtime.checked_values import is_unicode, shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.sessions.session import check_canvases
from lopa.serve.triton import model_file
from lopa.serve.triton.config_text import BUNDLE, PYTHON_PATH, config_text
from lopa.serve.triton.groups import InstanceGroup

_MAX_CHARACTERS = 128
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def check_model_name(name: str) -> str:
    """Return `name` if it is valid as a folder and in http://HOST/v2/models/NAME/generate. Raises BadInputError."""
    if _NAME.fullmatch(name) and len(name) <= _MAX_CHARACTERS:
        return name
    raise BadInputError(
        f"invalid model name {shown(name)}",
        expected=f"letters, digits, _, - and . ({_MAX_CHARACTERS} at most), the first a letter, a digit or _",
        remedy="choose another name with --model NAME",
    )


CONFIG_NAME = "config.pbtxt"
VERSION = "1"
_MODEL = Product("model", CONFIG_NAME)


def write_model(
    repository: Path,
    name: str,
    bundle: Path,
    *,
    groups: Sequence[InstanceGroup],
    parameters: Mapping[str, str],
    python_path: str | None,
    link: bool,
) -> Path:
    """Add the model `name` to `repository`, creating it if necessary, and return the model's folder.

    With `link` the config refers to the bundle's path; otherwise the bundle is copied. Raises BadInputError for an
    invalid bundle, an invalid or existing name, a folder with other content, and the errors of `staged_folder`. After
    an error nothing is left behind.
    """
    check_model_name(name)
    opened = Bundle.open(bundle)
    for group in groups:
        check_canvases(opened, group.devices.split(","))
    _check_repository(repository, name)
    source = opened.path.resolve()
    if not link and (repository / name).resolve().is_relative_to(source):
        raise BadInputError(
            f"repository {repository} is inside the bundle {bundle}",
            expected="a repository outside the bundle, which is copied into it",
            remedy="choose another -o, or use --link",
        )
    paths = {BUNDLE: str(source) if link else BUNDLE, **({} if python_path is None else {PYTHON_PATH: python_path})}
    text = config_text(name, groups, {**parameters, **paths})
    if not is_unicode(text):
        raise BadInputError(f"path is not UTF-8: {shown(text)}", expected="paths in UTF-8", remedy="rename the folders")
    room = 0 if link else sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    with staged_folder(repository / name, overwrite=False, needed_bytes=room, product=_MODEL) as folder:
        (folder / CONFIG_NAME).write_text(text, encoding="utf-8")
        (folder / VERSION).mkdir()
        shutil.copyfile(model_file.__file__, folder / VERSION / "model.py")
        if not link:
            shutil.copytree(source, folder / VERSION / BUNDLE)
            Bundle.open(folder / VERSION / BUNDLE)
    return repository / name


def _check_repository(repository: Path, name: str) -> None:
    """Raise BadInputError unless `repository` is new, empty, or contains only other models."""
    expected = "a new or empty folder, or one that contains only Triton models"
    with errors_as_bad_input(str(repository), expected=expected, remedy="choose another -o"):
        found = sorted(repository.iterdir()) if repository.exists() else []
    if any(path.name == name for path in found):
        raise BadInputError(
            f"{repository} already contains a model {name!r}",
            expected="unique model names in a repository",
            remedy="choose another --model, or remove the existing one",
        )
    other = next((path.name for path in found if not _is_model(path)), None)
    if other is not None:
        raise BadInputError(
            f"{repository} contains {other!r}, which is not a Triton model",
            expected=expected,
            remedy="choose another -o",
        )


def _is_model(path: Path) -> bool:
    """Return whether the folder looks like a Triton model: it has a configuration or a version folder."""
    if not path.is_dir():
        return False
    return (path / CONFIG_NAME).is_file() or any(each.is_dir() and each.name.isdecimal() for each in path.iterdir())
