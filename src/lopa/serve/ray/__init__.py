"""Replicas of the server's app on Ray Serve (docs/how-to/deploy.md). Ray is imported only when an application is
built."""

from typing import Any

from lopa.runtime.extra import extra_needed

__all__ = ["app"]
_MODULES = {"ray", "mmh3", "starlette", "prometheus_client"}
"""Packages of the extra `ray`."""


def app(args: dict[str, Any]) -> Any:
    """Return a Ray Serve application of bundles: `serve run lopa.serve.ray:app bundle=PATH`, or `import_path` in a YAML
    file.

    `args` are the options of lopa.serve.ray.ray_options. Raises BadInputError for invalid options and missing bundles,
    and MissingBackendError without Ray.
    """
    with extra_needed("ray", _MODULES, "Ray Serve and the server's packages"):
        from lopa.serve.ray.application import application_from_options
    from lopa.serve.ray.ray_options import options_from_args

    return application_from_options(options_from_args(args))
