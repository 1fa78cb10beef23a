"""Shape buckets of a build, from the file of --buckets or from the bundle."""

from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlan, bucket_plan_from_file, bucket_plan_path
from lopa.runtime.errors import BadInputError


def bucket_plan_from_option(bundle: Bundle, path: Path | None) -> BucketPlan:
    """Return the plan at `path`, or the bundle's own plan if it is None. Raises BadInputError without a usable plan."""
    plan = bucket_plan_path(bundle.path) if path is None else path
    if not plan.is_file():
        raise BadInputError(
            f"{plan} does not exist",
            expected="a file with the shape buckets to build for",
            remedy=f"make one: lopa-export plan {bundle.path}",
        )
    return bucket_plan_from_file(plan, bundle)
