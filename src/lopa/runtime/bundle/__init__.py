"""What lies in a bundle: manifest, weights, cost tables, buckets, descriptions of engines. Runs nothing."""

from lopa.runtime.bundle.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import Manifest

__all__ = ["Bundle", "Manifest", "sha256_of_file"]
