"""Bundles of the tiny checkpoint, exported once for a whole test run, also when several workers share it."""

import fcntl
import os
from pathlib import Path

import pytest

from lopa.tiny import ADAPTER, CHECKPOINT


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32, with the adapter. Shared: a test that alters it copies it first."""
    return _bundle_made_once(tmp_path_factory, "tiny", with_logits=False)


@pytest.fixture(scope="session")
def tiny_bundle_logits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As tiny_bundle, with the logits among the outputs."""
    return _bundle_made_once(tmp_path_factory, "tiny-logits", with_logits=True)


def _bundle_made_once(tmp_path_factory: pytest.TempPathFactory, name: str, *, with_logits: bool) -> Path:
    """Workers of pytest-xdist have base folders of their own inside one that they share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    bundle = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not bundle.exists():
            # Imported here because the runtime's tests also run where torch is not installed.
            from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint

            bundle_from_checkpoint(CHECKPOINT, bundle, lora=ADAPTER, with_logits=with_logits)
    return bundle
