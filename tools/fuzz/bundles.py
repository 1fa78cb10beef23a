"""Cases from a bundle: manifest, graph, weights, links, tokenizer, and optional files next to them."""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import onnx
from tests.runtime.accelerator.host_memory import device_session

from lopa import Decoder
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.ascend.ascend_manifest import engine_folder as ascend_folder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, BucketTable, bucket_plan_from_file
from lopa.runtime.bundle.costs import CostTable, costs_from_file
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES, engine_for_device, target_of_device
from lopa.runtime.tensorrt.tensorrt_manifest import engine_folder as tensorrt_folder
from lopa.runtime.text.tokenizer import Tokenizer
from tools.fuzz.case import VERIFY_SECONDS, Case, Material
from tools.fuzz.decode import OPTIONS, answer_of_bundle, answer_of_decoder, run_command
from tools.fuzz.graphs import changed_graph
from tools.fuzz.material import bundle_of_mode, good_description, write_manifest
from tools.fuzz.mutations import changed_bytes, changed_document, number, put_in_place, short, text_of_json, value

_MODES = ("cpu",) * 14 + ("numpy",) * 2 + ("portable",) * 3 + ("staged",)


def manifest_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate manifest.json: its bytes or any value."""
    bundle, mode = copy_bundle(rng, folder, material)
    path = bundle / "manifest.json"
    text, words = changed_document(rng, path.read_bytes(), bytes_share=0.4)
    path.write_bytes(text)
    return _decode_case(words, bundle, material, mode, rng, may_differ=_may_differ(words))


def _may_differ(words: str) -> bool:
    """Return True if the mutation may change the answer: decoding defaults, special tokens and the prediction shift."""
    return any(name in words for name in ("decoding", "special_tokens", "prediction_shift"))


_DIMENSIONS = ("dimensions", "special_tokens", "decoding")


def dimensions_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate one or two numbers of the manifest."""
    bundle, mode = copy_bundle(rng, folder, material)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    words = []
    for _ in range(rng.choice([1, 1, 2])):
        part = rng.choice([*_DIMENSIONS, *_DIMENSIONS, "top", "tensors", "stages"])
        tree: Any = manifest if part == "top" else manifest[part]
        if part in ("tensors", "stages"):
            if not tree:
                continue
            tree = rng.choice(list(tree.values()) if part == "tensors" else tree)
        name = rng.choice([key for key, old in tree.items() if not isinstance(old, dict)])
        choices = {"dtype": ["float16", "float32", "bfloat16", "int8", "int4"], "dialect": ["portable", "standard"]}
        tree[name] = rng.choice(choices[name]) if name in choices else number(rng) if rng.random() < 0.9 else value(rng)
        words.append(f"{part}.{name} = {short(tree[name])}")
    (bundle / "manifest.json").write_bytes(text_of_json(rng, manifest))
    # rope_theta and rms_norm_eps are constants of the graph. Only the numpy engine reads them from the manifest.
    constants = mode == "numpy" and any(name in " ".join(words) for name in ("rope_theta", "rms_norm_eps"))
    may_differ = constants or _may_differ(" ".join(words)) or "tensors" in " ".join(words)
    return _decode_case("; ".join(words), bundle, material, mode, rng, may_differ=may_differ)


def graph_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate a field of the ONNX file, or its bytes."""
    bundle, mode = copy_bundle(rng, folder, material, modes=("cpu", "cpu", "portable"))
    name = json.loads((bundle / "manifest.json").read_bytes())["graph"]
    path = bundle / name
    if rng.random() < 0.25:
        data, words = changed_bytes(rng, path.read_bytes())
    else:
        model = onnx.load(path, load_external_data=False)
        words = changed_graph(rng, model)
        data = model.SerializeToString()
    path.write_bytes(data)
    update_record(bundle, name)
    return _decode_case(words, bundle, material, mode, rng, may_differ=True)


def weights_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate values of the weights file, or its length."""
    bundle, mode = copy_bundle(rng, folder, material)
    path = bundle / "model.onnx.data"
    size = path.stat().st_size
    at = rng.randrange(size) // 4 * 4
    kind = rng.choice(
        ["nan", "nan", "inf", "random", "zeros", "huge", "all nan", "all random", "cut", "empty", "longer"]
    )
    patterns = {"nan": b"\0\0\xc0\x7f", "inf": b"\0\0\x80\xff", "zeros": bytes(4), "huge": b"\xff\xff\x7f\x7f"}
    if kind in ("cut", "empty"):
        os.truncate(path, at if kind == "cut" else 0)
    elif kind == "longer":
        os.truncate(path, size + rng.choice([1, 4096, 10**9]))
    else:
        count = size // 4 if kind.startswith("all") else rng.choice([1, 16, 1000, 100_000])
        at = 0 if kind.startswith("all") else at
        data = rng.randbytes(4 * count) if "random" in kind else patterns[kind.removeprefix("all ")] * count
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data[: size - at])
    if rng.random() < 0.9:
        update_record(bundle, path.name)
    return _decode_case(f"{kind} at {at}", bundle, material, mode, rng, may_differ=True)


def links_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Replace a file of the bundle, or point a name in its manifest elsewhere."""
    bundle, mode = copy_bundle(rng, folder, material)
    names = sorted(path.name for path in bundle.iterdir())
    name = rng.choice(names)
    path = bundle / name
    kind = rng.choice(["loop", "folder", "fifo", "missing", "device", "outside", "up", "dangling", "name", "record"])
    if kind in ("name", "record"):
        words = _rename(rng, bundle)
    else:
        words = f"{name}: {kind}"
        put_in_place(path, kind, path.rename(folder / "kept"))
    return _decode_case(words, bundle, material, mode, rng, may_differ=False)


_NAMES = (
    *("..", ".", "", "/etc/passwd", "../kept", "a\0b", "a/" * 3000 + "a", "n" * 300, "manifest.json", "model.onnx"),
    *("./model.onnx", "tokenizer.json", "model.onnx.data", "\ud800", "C:\\x", "//model.onnx", "fifo", "~", "x/../y"),
)


def _rename(rng: random.Random, bundle: Path) -> str:
    os.mkfifo(bundle / "fifo")
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    name = rng.choice(_NAMES)
    part = rng.choice(["graph", "weights", "portable_graph", "file", "file", "both", "stage"])
    if part in ("file", "both"):
        record = rng.choice(manifest["files"])
        for key in ("graph", "weights"):
            if part == "both" and manifest[key] == record["path"]:
                manifest[key] = name
        record["path"] = name
    elif part == "stage":
        for stage in manifest["stages"]:
            stage["graph"] = name
    else:
        manifest[part] = name
    (bundle / "manifest.json").write_bytes(text_of_json(rng, manifest))
    return f"{part} is named {short(name)}"


def costs_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate costs.cpu.json, which branches=auto uses."""
    bundle, _ = copy_bundle(rng, folder, material, modes=("cpu",))
    path = bundle / "costs.cpu.json"
    words = _write_changed(rng, path, good_description("costs", Bundle.open(bundle)))

    def run() -> object:
        table = CostTable(costs_from_file(path))
        for branches in (1, 3, 8, 1000):
            seconds = table.seconds(branches, 20, 70) + table.host_seconds(branches)
            if not seconds >= 0:
                raise RuntimeError(f"the table gives {seconds} seconds for {branches} branches")
        with Decoder.open(bundle, threads=1) as decoder:
            return answer_of_decoder(decoder, decoder.config(decoder.config(**OPTIONS), branches="auto"))

    return Case(words, run)


def buckets_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate `shape_buckets.json`, then use its table and a session with its shape buckets."""
    path = folder / BUCKETS_NAME
    words = _write_changed(rng, path, good_description("buckets", Bundle.open(material.bundle)))

    def run() -> object:
        bundle = Bundle.open(material.bundle)
        found = bucket_plan_from_file(path, bundle)
        BucketTable(found.buckets)
        session, _, _ = device_session(bundle, found.buckets)
        with Decoder(bundle, session, Tokenizer.open(bundle), threads=1) as decoder:
            return answer_of_decoder(decoder, decoder.config(**OPTIONS))

    return Case(words, run, material.answers["cpu"])


def engine_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate engine.json of both kinds of engines."""
    bundle, _ = copy_bundle(rng, folder, material, modes=("cpu",))
    opened = Bundle.open(bundle)
    gpu = CudaDevice(number=0, name="NVIDIA H100", capability="9.0", memory=2**36, cuda=13000)
    if rng.random() < 0.5:
        target, engine = ascend_folder(opened, "Ascend910B1"), good_description("ascend", opened)
    else:
        target = tensorrt_folder(opened, target_of_device(gpu, "10.15.1.29"))
        engine = good_description("tensorrt", opened)
    target.mkdir(parents=True)
    for record in engine["files"]:
        (target / record["path"]).write_bytes(bytes(record["size"]))
    words = _write_changed(rng, target / "engine.json", engine)
    if rng.random() < 0.2:
        path = target / rng.choice([*(each["path"] for each in engine["files"]), "engine.json"])
        path.unlink()
        put_in_place(path, rng.choice(["loop", "folder", "fifo", "missing"]))
        words += f"; {path.name} replaced"

    def run() -> None:
        if target.name.startswith("ascend"):
            ASCEND_ENGINES.read(target).fits(opened)
            run_command("inspect", bundle)
        else:
            TENSORRT_ENGINES.read(target)
            engine_for_device(opened, gpu, "10.15.1.29")

    return Case(f"{target.name}: {words}", run)


def copy_bundle(
    rng: random.Random, folder: Path, material: Material, modes: tuple[str, ...] = _MODES
) -> tuple[Path, str]:
    """Copy the bundle for a random way to decode. ONNX Runtime rejects linked weights."""
    mode = rng.choice(modes)
    source, _ = bundle_of_mode(material, mode)
    return Path(shutil.copytree(source, folder / "bundle")), mode


def _decode_case(
    words: str, bundle: Path, material: Material, mode: str, rng: random.Random, *, may_differ: bool
) -> Case:
    """Return the case that decodes the bundle. Some cases run a command on it first."""
    _, devices = bundle_of_mode(material, mode)
    command = rng.choice([None] * 6 + ["inspect", "verify", "generate", "generate"])

    def run() -> object:
        if command == "generate":
            run_command("generate", bundle, "2 + 3?", "--max-new-tokens", 8, "--device", devices[0], "--threads", 1)
        elif command is not None:
            run_command(command, bundle)
        return answer_of_bundle(bundle, devices)

    seconds = VERIFY_SECONDS if command == "verify" else 0
    return Case(words, run, material.answers[mode], processor_seconds=seconds, may_differ=may_differ)


def _write_changed(rng: random.Random, path: Path, tree: Any) -> str:
    text, words = changed_document(rng, json.dumps(tree, indent=2).encode(), bytes_share=0.3)
    path.write_bytes(text)
    return words


def update_record(bundle: Path, name: str) -> None:
    """Update size and digest of a file in the manifest, since digests are no protection."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    path = bundle / name
    for record in manifest["files"]:
        if record["path"] == name:
            record["size"] = path.stat().st_size
            record["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest() if record["size"] < 10**8 else "0" * 64
    write_manifest(bundle, manifest)
