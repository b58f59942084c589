"""Metrics of the server in Prometheus' format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)  # upper bounds of the histogram in seconds


class Metrics:
    """Metrics: requests by path and status, their duration in seconds, tokens by kind, and open requests by state.

    Args:
        paths: The server's paths. Others are counted as one, since anyone can ask for any.
        counts: Returns the numbers of requests in the server by state.
        tokens: Returns the numbers of tokens by kind since the start.
    """

    def __init__(
        self, paths: Sequence[str], counts: Callable[[], Mapping[str, int]], tokens: Callable[[], Mapping[str, int]]
    ):
        self.paths, self.registry = paths, CollectorRegistry()
        self.requests = Counter("lagwise_requests", "Answered requests.", ("path", "status"), registry=self.registry)
        self.seconds = Histogram(
            "lagwise_request_seconds",
            "Seconds from a request to the end of its answer.",
            ("path",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_Numbers(counts, tokens))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted. One that ends without an answer has the status 0."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            began, status = time.monotonic(), 0
            path = next((path for path in self.paths if scope["path"] == path), "other")

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                self.requests.labels(path, str(status)).inc()
                self.seconds.labels(path).observe(time.monotonic() - began)

        return counted


class _Numbers(Collector):
    """Collector of the server's own counters, which are read at every scrape."""

    def __init__(self, counts: Callable[[], Mapping[str, int]], tokens: Callable[[], Mapping[str, int]]):
        self.counts, self.tokens = counts, tokens

    def collect(self) -> Iterator[Metric]:
        present = GaugeMetricFamily("lagwise_requests_present", "Requests in the server.", labels=("state",))
        for state, number in self.counts().items():
            present.add_metric((state,), number)
        tokens = CounterMetricFamily("lagwise_tokens", "Tokens read and generated.", labels=("kind",))
        for kind, number in self.tokens().items():
            tokens.add_metric((kind,), number)
        yield from (present, tokens)
