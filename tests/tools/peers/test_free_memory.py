"""Free memory of the machine and of its control groups."""

from pathlib import Path

import pytest
from tools.peers import free_memory as module


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a system with 8 MB available, in a control group without a limit."""
    monkeypatch.setattr(module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    (tmp_path / "meminfo").write_text("MemTotal:  16000 kB\nMemAvailable:  8000 kB\n")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "groups/outer/inner").mkdir(parents=True)
    (tmp_path / "groups/outer/inner/memory.max").write_text("max\n")
    (tmp_path / "groups/outer/inner/memory.current").write_text("1000\n")
    return tmp_path


def test_free_memory_of_the_machine(machine: Path) -> None:
    assert module.free_memory() == 8000 * 1024
    (machine / "meminfo").unlink()
    assert module.free_memory() is None


def test_parent_group_limits_free_memory(machine: Path) -> None:
    outer = machine / "groups/outer"
    (outer / "memory.max").write_text("5000000\n")
    (outer / "memory.current").write_text("3000000\n")
    (outer / "memory.stat").write_text("anon 7\ninactive_file 500000\nactive_file 9\n")
    assert module.free_memory() == 2_500_000
    (outer / "memory.current").write_text("9000000\n")
    assert module.free_memory() == 0
