"""OpenTelemetry traces: a span per request with the phases of its choices. Only two modules import the libraries of the
extra `otel`, and only a server that exports traces imports these modules."""
