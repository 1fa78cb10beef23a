"""One prompt resolves and checks its options once."""

from pathlib import Path

from tools.reports.path_trace import calls_of_one_prompt


def test_options_of_one_prompt_are_resolved_and_checked_once(tiny_bundle: Path) -> None:
    calls = calls_of_one_prompt(tiny_bundle)
    package = "runtime/generation_config"
    assert calls[f"{package}/resolve.py", "params_from_options"] == 1
    assert calls[f"{package}/resolve.py", "merged_options"] == 1
    assert calls[f"{package}/option_checks.py", "check_together"] == 1
    assert calls["runtime/requests/job.py", "job"] == 1
    assert "cli/commands.py" in {path for path, _ in calls}
