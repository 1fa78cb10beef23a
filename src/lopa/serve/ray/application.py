"""Ray Serve application from options: an ingress, and replicas behind it."""

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig

from lopa.serve.http.api_error import RETRY_SECONDS
from lopa.serve.http.keys import keys_from_file
from lopa.serve.http.origin_policy import origin_policy_from_options
from lopa.serve.ray.affinity import models_from_bundles
from lopa.serve.ray.bundle_replica import BundleReplica
from lopa.serve.ray.ingress import Ingress
from lopa.serve.ray.ray_options import RayOptions
from lopa.serve.ray.router import PrefixRouter

INGRESS, REPLICAS = "Ingress", "Bundles"
"""Names of the deployments, which a YAML file uses to set Ray's own options."""
_MAX_EXCESS = 10_000
"""Maximum concurrent requests of the ingress beyond the replicas' capacity. The ingress answers them with the API's own
429.
"""


def application_from_options(options: RayOptions, replica: type[BundleReplica] = BundleReplica) -> Any:
    """Return a Ray Serve application. Raises BadInputError for options that prevent replicas from starting."""
    models = models_from_bundles(options.bundles)
    policy = origin_policy_from_options(options.allow_host, options.cors, host="localhost", on_loopback=False)
    keys = options.api_keys and keys_from_file(options.api_keys)
    scaling: dict[str, Any] = {"num_replicas": options.min_replicas}
    if options.max_replicas > options.min_replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.min_replicas,
                max_replicas=options.max_replicas,
                target_ongoing_requests=options.max_num_seqs,  # with more requests than this, some wait
                upscale_delay_s=options.scale_up_seconds,
                downscale_delay_s=options.scale_down_seconds,
            )
        }
    replicas = serve.deployment(replica, name=REPLICAS).options(
        **scaling,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=options.capacity,
        max_queued_requests=options.waiting,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"max_excess": options.max_num_seqs},  # with so many more, the request would wait
        ),
        health_check_period_s=options.health_seconds,
        graceful_shutdown_timeout_s=options.drain,
    )
    ingress = serve.deployment(Ingress, name=INGRESS).options(
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=options.max_replicas * options.capacity + options.waiting + _MAX_EXCESS,
        max_queued_requests=_MAX_EXCESS,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_SECONDS),
        graceful_shutdown_timeout_s=options.drain,
    )
    return ingress.bind(replicas.bind(options, models), models, options, keys, policy)
