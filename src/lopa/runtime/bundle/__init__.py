"""Contents of a bundle: manifest, weights, cost tables, shape buckets and engine descriptions. This package runs no
graph."""

from lopa.runtime.bundle.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import Manifest

__all__ = ["Bundle", "Manifest", "sha256_of_file"]
