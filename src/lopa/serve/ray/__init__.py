"""Replicas of the server's app on Ray Serve (docs/how-to/deploy.md). Ray is imported when an application is built, not
before."""

from typing import Any

from lopa.runtime.extra import extra_needed

__all__ = ["app"]
_MODULES = {"ray", "mmh3", "starlette", "prometheus_client"}
"""What the extra brings."""


def app(args: dict[str, Any]) -> Any:
    """A Ray Serve application of bundles: `serve run lopa.serve.ray:app bundle=PATH`, or `import_path` in a YAML file.

    `args` are the options of lopa.serve.ray.options. Raises BadInputError for those that cannot be used and for a
    bundle that is not there, MissingBackendError where Ray is not installed.
    """
    with extra_needed("ray", _MODULES, "Ray Serve and what the server needs"):
        from lopa.serve.ray.application import application_of_options
    from lopa.serve.ray.options import options_from_args

    return application_of_options(options_from_args(args))
