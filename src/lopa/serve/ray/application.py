"""From options to an application: a door, and replicas behind it."""

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig

from lopa.serve.http.api_error import RETRY_SECONDS
from lopa.serve.http.keys import keys_from_file
from lopa.serve.http.visitors import visitors_of_server
from lopa.serve.ray.door import Door
from lopa.serve.ray.models import models_of_bundles
from lopa.serve.ray.options import RayOptions
from lopa.serve.ray.replica import BundleReplica
from lopa.serve.ray.router import AffinityRouter

DOOR, REPLICAS = "Door", "Bundles"
"""Names of the deployments, by which a YAML file may set what Ray knows of them."""
_CROWD = 10_000
"""Requests that the door has at once: those for which there is no place it turns away itself, as the API does."""
_REFUSAL = BackpressureConfig(status_code=429, retry_after_s=RETRY_SECONDS)


def application_of_options(options: RayOptions, replica: type[BundleReplica] = BundleReplica) -> Any:
    """An application of Ray Serve. Raises BadInputError for what would let no replica start."""
    models = models_of_bundles(options.bundles)
    visitors_of_server(options.allow_host, options.cors, host="localhost", on_loopback=False)
    if options.api_keys is not None:
        keys_from_file(options.api_keys)
    scaling: dict[str, Any] = {"num_replicas": options.min_replicas}
    if options.max_replicas > options.min_replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.min_replicas,
                max_replicas=options.max_replicas,
                target_ongoing_requests=options.max_num_seqs,  # more than run at once: some wait
                upscale_delay_s=options.scale_up_seconds,
                downscale_delay_s=options.scale_down_seconds,
            )
        }
    replicas = serve.deployment(replica, name=REPLICAS).options(
        **scaling,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=options.places,
        max_queued_requests=options.waiting,
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
        health_check_period_s=options.health_seconds,
        graceful_shutdown_timeout_s=options.drain,
    )
    door = serve.deployment(Door, name=DOOR).options(
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=options.max_replicas * options.places + options.waiting + _CROWD,
        max_queued_requests=_CROWD,
        backpressure_config=_REFUSAL,
        graceful_shutdown_timeout_s=options.drain,
    )
    return door.bind(replicas.bind(options, models), models, options.limits)
