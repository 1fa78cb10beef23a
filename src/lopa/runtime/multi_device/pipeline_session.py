"""A pipeline of devices: "cuda:0+cuda:1" computes the first layers on cuda:0 and the others on cuda:1.

The prefix caches are in host memory, where each stage binds the caches of its own layers. Together they take as much
memory as a session on the whole graph, and HostSession commits, appends and releases for all stages at once.
"""

from dataclasses import replace

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.device_families import stages_of_device, uses_all_cores
from lopa.runtime.errors import BadInputError
from lopa.runtime.multi_device.pipeline_forward import PipelinedForward, PipelineStage
from lopa.runtime.sessions.cpu_cores import cores_from_device
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import forward_from_bundle


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:
    """Open the stages of `bundle` on the parts of `device`, in order, each with `threads` threads.

    Raises BadInputError if the bundle has another number of stages, and for a
    device with an empty part or a repeated number. Otherwise raises as forward_from_bundle.
    """
    devices = _devices_from_name(device)
    manifest = bundle.manifest
    if len(devices) != len(manifest.stages):
        raise BadInputError(
            f"device {device!r} of {len(devices)} stages for {bundle.path}, a bundle of {len(manifest.stages) or 'no'}",
            expected="a bundle with as many stages as the device",
            remedy=f"export the checkpoint with --stages {len(devices)}",
        )
    stages: list[PipelineStage] = []
    try:
        for number, (one, stage) in enumerate(zip(devices, manifest.stages, strict=True)):
            # a stage is the bundle with another graph
            of_stage = replace(bundle, manifest=msgspec.structs.replace(manifest, graph=stage.graph))
            part = ModelPart(stage.first_layer, stage.end_layer, manifest.dimensions.layers)
            forward = forward_from_bundle(of_stage, part, one, threads=threads)
            stages.append(PipelineStage(forward, part, f"{device}, stage {number}", cores_from_device(one)))
    except BaseException:
        for opened in stages:
            opened.close()
        raise
    shape = cache_shape_from_manifest(manifest)
    return HostSession(PipelinedForward(stages, shape), device, shape)


def _devices_from_name(name: str) -> list[str]:
    devices = stages_of_device(name)
    numbered = [device for device in devices if ":" in device and not uses_all_cores(device)]
    if "" in devices or len(set(numbered)) < len(numbered):
        raise BadInputError(
            f"device {name!r}",
            expected="the devices of the stages joined by +, none empty and none numbered twice",
            remedy="e.g. cuda:0+cuda:1, or cpu+cpu",
        )
    return devices
