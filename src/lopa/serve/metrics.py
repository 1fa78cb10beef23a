"""Prometheus metrics of a server: an engine observer, and counters of HTTP requests."""

import math
from collections.abc import Callable, Iterable
from itertools import product
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.metrics import disable_created_metrics

from lopa import __version__
from lopa.runtime.engine import Engine
from lopa.runtime.requests.observer import AdmissionReport, EndReport, RoundReport
from lopa.serve.openai.body_options import PROMPT_FIELDS, SCORES
from lopa.serve.openai.response_shapes import ERROR_CODES, FINISH_REASONS, NO_CODE, ErrorCode

_ROUND_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_ENDPOINTS = {path: path.removeprefix("/v1/") for path in (*PROMPT_FIELDS, SCORES)}
_KINDS = ("real", "padding")
_RESULTS = ("succeeded", "failed")
_PER_FORWARD = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)


class ServeMetrics:
    """EngineObserver that feeds Prometheus. Every metric of lopa has the label `model`. Process metrics keep
    Prometheus's own names.

    All series exist from the start with value 0: Prometheus does not count an event that creates its series.
    """

    def __init__(self, model: str) -> None:
        # For the whole process: no series `..._created` with the time at which another series began.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self._model = model
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = self._counter(
            "lopa_requests",
            "Answers that ended, by endpoint and finish_reason.",
            endpoint=_ENDPOINTS.values(),
            finish_reason=FINISH_REASONS,
        )
        self._rejected = self._counter(
            "lopa_rejected",
            "Requests that ended with an error over HTTP, also within a stream, by error code.",
            reason=(NO_CODE, *ERROR_CODES),
        )
        self._cancelled = self._counter("lopa_cancelled", "Answers cancelled by their client or by its disconnect.")
        self._prompt_tokens = self._counter("lopa_prompt_tokens", "Tokens of the prompts of answers that ended.")
        self._generated = self._counter("lopa_generated_tokens", "Tokens of answers that ended.")
        self._steps = self._counter("lopa_steps", "Steps of answers that ended.")
        self._reused = self._counter("lopa_prompt_rows_reused", "Prompt rows taken from the cache instead of computed.")
        self._hits = self._counter("lopa_prefix_cache_hits", "Answers whose prompt began with rows in the cache.")
        self._evicted = self._counter("lopa_prefix_cache_evictions", "Blocks dropped from the prefix cache.")
        self._rows = self._counter("lopa_round_rows", "Query tokens computed, real or padding.", kind=_KINDS)
        self._per_forward = self._histogram("lopa_tokens_per_forward", "Tokens per step of an answer.", _PER_FORWARD)
        self._round = self._histogram(
            "lopa_round_seconds", "Wall time of a decoding round of all requests.", _ROUND_SECONDS
        )
        self._outside = self._counter("lopa_round_outside_seconds", "Seconds of decoding rounds outside the forwards.")
        self._queue = self._histogram(
            "lopa_queue_seconds", "Seconds from submission to the first round.", _REQUEST_SECONDS
        )
        self._first_text = self._histogram(
            "lopa_first_text_seconds", "Seconds from submission to the first committed text.", _REQUEST_SECONDS
        )
        self._seconds = self._histogram("lopa_request_seconds", "Seconds from submission to the end.", _REQUEST_SECONDS)
        self._reloads = self._counter(
            "lopa_reloads", "Attempts to replace the bundle after SIGHUP, by result.", result=_RESULTS
        )
        self._build = Gauge(
            "lopa_build_info",
            "1, with lopa's version and, once a bundle is open, its schema and the digest in `system_fingerprint`.",
            ("model", "version", "bundle", "schema"),
            registry=self.registry,
        )
        self.show_bundle("", "")
        self._engines: tuple[Engine, ...] = ()
        self.is_ready: Callable[[], bool] = lambda: False
        """Returns whether the server accepts requests."""
        ready = Gauge("lopa_ready", "1 while requests are accepted, as in /ready.", ("model",), registry=self.registry)
        ready.labels(model).set_function(lambda: self.is_ready())
        self._gauge("lopa_requests_running", "Running decodes.", lambda *engines: sum(each.running for each in engines))
        self._gauge("lopa_requests_waiting", "Waiting decodes.", lambda *engines: sum(each.waiting for each in engines))
        self._gauge(
            "lopa_cache_used_ratio",
            "Cached rows divided by the capacity of the caches.",
            lambda newest, *_: newest.cache_rows / newest.cache_rows_limit,
        )
        self._gauge(
            "lopa_cache_rows_free",
            "Rows that the device still has memory for; NaN if its limit is unknown.",
            lambda newest, *_: math.nan if newest.free_cache_rows is None else newest.free_cache_rows,
        )
        self._gauge("lopa_engine_failed", "1 once a device has failed.", lambda newest, *_: newest.failure is not None)

    def watch(self, *engines: Engine) -> None:
        """Report the state of `engines` from now on, read at each scrape. The newest comes first."""
        self._engines = engines

    def show_bundle(self, digest: str, schema: str) -> None:
        """Report the bundle that later requests use; empty texts mean none."""
        self._build.clear()
        self._build.labels(self._model, __version__, digest, schema).set(1)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def answered(self, endpoint: str, finish_reason: str) -> None:
        """Count a complete answer."""
        self._requests.labels(self._model, _ENDPOINTS[endpoint], finish_reason).inc()

    def reloaded(self, *, succeeded: bool) -> None:
        """Count an attempt to replace the bundle."""
        self._reloads.labels(self._model, _RESULTS[not succeeded]).inc()

    def rejected(self, code: ErrorCode | None) -> None:
        """Count a request that ended with an error."""
        self._rejected.labels(self._model, code or NO_CODE).inc()

    def round_ended(self, report: RoundReport) -> None:
        """Record one decoding round."""
        self._round.labels(self._model).observe(report.seconds)
        self._outside.labels(self._model).inc(report.seconds_outside)
        for kind, rows in zip(_KINDS, (report.real_rows, report.padding_rows), strict=True):
            self._rows.labels(self._model, kind).inc(rows)
        self._evicted.labels(self._model).inc(report.evicted_blocks)

    def request_admitted(self, report: AdmissionReport) -> None:
        """Record the queueing time of a request."""
        self._queue.labels(self._model).observe(report.queue_seconds)
        self._reused.labels(self._model).inc(report.cached_tokens)
        self._hits.labels(self._model).inc(report.cached_tokens > 0)

    def request_ended(self, report: EndReport) -> None:
        """Record the cost of a request that ended."""
        self._prompt_tokens.labels(self._model).inc(report.prompt_tokens)
        self._generated.labels(self._model).inc(report.tokens)
        self._steps.labels(self._model).inc(report.steps)
        self._seconds.labels(self._model).observe(report.seconds)
        if report.first_text_seconds is not None:
            self._first_text.labels(self._model).observe(report.first_text_seconds)
        if report.steps:
            self._per_forward.labels(self._model).observe(report.tokens / report.steps)
        if report.cancelled:
            self._cancelled.labels(self._model).inc()

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        """Return a counter with a series for every combination of label values."""
        counter = Counter(name, text, ("model", *labels), registry=self.registry)
        for values in product(*labels.values()):
            counter.labels(self._model, *values)
        return counter

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ("model",), buckets=buckets, registry=self.registry)
        histogram.labels(self._model)
        return histogram

    def _gauge(self, name: str, text: str, value: Callable[..., float]) -> None:
        """Add a gauge of the statuses of all engines, which is 0 until there is one."""
        Gauge(name, text, ("model",), registry=self.registry).labels(self._model).set_function(
            lambda: value(*(each.status for each in self._engines)) if self._engines else 0.0
        )


def text_by_replica(replicas: Iterable[tuple[str, Iterable[Metric]]]) -> bytes:
    """Return the metrics of replicas by name in Prometheus's text format. The label `replica` tells them apart.

    Several bundles of one replica report the same process, which counts once.
    """
    merged: dict[str, Metric] = {}
    series = set()
    for name, metrics in replicas:
        for each in metrics:
            found = merged.setdefault(each.name, Metric(each.name, each.documentation, each.type))
            for sample in each.samples:
                labels = {**sample.labels, "replica": name}
                if (key := (sample.name, *labels.items())) not in series:
                    series.add(key)
                    found.add_sample(sample.name, labels, sample.value)
    collected: Any = SimpleNamespace(collect=merged.values)
    return generate_latest(collected)
