"""Our decoder beside a plain eager loop."""
