"""The plan of buckets that a build takes: the one it was given, or the bundle's own."""

from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlan, bucket_plan_from_file, bucket_plan_path
from lopa.runtime.errors import BadInputError


def bucket_plan_from_option(bundle: Bundle, path: Path | None) -> BucketPlan:
    """The plan at `path`, None: in the bundle. Raises BadInputError when there is none that can be used."""
    plan = bucket_plan_path(bundle.path) if path is None else path
    if not plan.is_file():
        raise BadInputError(
            f"{plan} does not exist",
            expected="a plan of the buckets to build for",
            remedy=f"make one: lopa-export plan {bundle.path}",
        )
    return bucket_plan_from_file(plan, bundle)
