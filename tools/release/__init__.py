"""The release of a commit: `make release` (tools/release/README.md)."""
