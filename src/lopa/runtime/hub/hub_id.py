"""Ids of repositories on the Hub: ORG/NAME, ORG/NAME@REVISION, hf://ORG/NAME@REVISION, or a page's address."""

import re
from dataclasses import dataclass
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_REVISION = r"(?!\S*\.\.)[\w.][\w./-]{0,250}"  # Git has no revision with two dots
_ID = re.compile(rf"({_NAME}/{_NAME})(?:@({_REVISION}))?", re.ASCII)
_URI = re.compile(rf"hf:/{{1,2}}({_NAME}/{_NAME})(?:@({_REVISION}))?", re.ASCII)
_PAGE = re.compile(
    rf"(?:https?:/{{1,2}})?(?:www\.)?(?:huggingface\.co|hf\.co)/({_NAME}/{_NAME})(?:/tree/({_REVISION}))?/?", re.ASCII
)


@dataclass(frozen=True)
class HubId:
    """A repository and, unless None, a branch, a tag or a commit."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        """Return ORG/NAME@REVISION."""
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def hub_id_from_uri(text: Path | str) -> HubId | None:
    """Return the id in hf://ORG/NAME@REVISION, or None for any other text. A Path has only one slash after hf:."""
    found = _URI.fullmatch(str(text))
    return None if found is None else HubId(found[1], found[2])


def hub_id_from_path(path: Path) -> HubId | None:
    """Return the id that `path` stands for if it does not exist, or None if it looks like a path.

    A name in an existing folder is a path that was misspelt.
    """
    text = str(path)
    for pattern in (_URI, _PAGE):
        if (found := pattern.fullmatch(text)) is not None:
            return HubId(found[1], found[2])
    found = _ID.fullmatch(text)
    return None if found is None or path.parent.exists() else HubId(found[1], found[2])
