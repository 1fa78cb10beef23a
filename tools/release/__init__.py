"""The release of a commit: `make release` (docs/releasing.md)."""
