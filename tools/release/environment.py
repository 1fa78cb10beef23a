"""An environment with the wheel in it and nothing else of this project."""

from dataclasses import dataclass
from pathlib import Path

from tools.release.programs import output_of


@dataclass(frozen=True)
class Environment:
    """A folder of a virtual environment, and the constraints by which packages get into it."""

    folder: Path
    constraints: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def script(self) -> Path:
        """The command that the wheel brings."""
        return self.folder / "bin" / "lopa-export"

    def install(self, wheel: Path, *extras: str) -> None:
        """Install the wheel with what it requires. Raises CheckFailedError where pip does not get it."""
        wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        output_of(
            [*pip, "--constraint", self.constraints, wanted],
            what=f"pip install {wheel.name} with {extras or 'no extra'}",
        )


def environment_of_interpreter(program: Path, folder: Path, constraints: Path) -> Environment:
    """A new one. Raises CheckFailedError where the interpreter cannot make it."""
    output_of([program, "-m", "venv", folder], what=f"{program} -m venv")
    return Environment(folder, constraints)
