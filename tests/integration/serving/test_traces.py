"""One span tree per request through a live Serve, as the delivered exporter sends it to a collector.

The collector is a small OTLP/HTTP server of the test; spans come over the network in protobuf.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.serve.schema import TracingConfig

from prism_ray.application import assemble
from prism_ray.config import PrismConfig

from .conftest import free_port
from .contract_tools import CHAT, chat, wait_until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = pytest.mark.serve

CONFIG: dict[str, Any] = {
    "extends": "simulated",
    "replicas": {"count": 2, "num_cpus": 0.1},
    "placement": {"policy": "e2"},
}
BELOW_INGRESS = ["prism.queue_wait", "prism.prefill", "prism.decode"]


@dataclass(frozen=True)
class Seen:
    """A span as it came: hexadecimal ids, seconds of the day, plain attributes."""

    name: str
    trace: str
    id: str
    parent: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """Takes OTLP/HTTP on a port of the loopback and keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    collector.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for span in (
            s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans
        ):
            self.spans.append(
                Seen(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                    {a.key: _value(a.value) for a in span.attributes},
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )
            )

    def tree_of(self, request_id: str) -> dict[str, Seen]:
        """Our spans of one request by name; waits for its root."""

        def root() -> Seen | None:
            named = (s for s in list(self.spans) if s.name == "prism.ingress")
            return next((s for s in named if s.attributes["prism.request_id"] == request_id), None)

        wait_until(lambda: root() is not None, f"no tree of {request_id}", 20.0)
        found = root()
        assert found is not None
        ours = [s for s in self.spans if s.trace == found.trace and s.name.startswith("prism.")]
        assert len({s.name for s in ours}) == len(ours), "one tree a request"
        return {s.name: s for s in ours}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    taking = Collector()
    yield taking
    taking.close()


@pytest.fixture(scope="module")
def client(collector: Collector) -> Iterator[httpx.Client]:
    """A Serve of its own: tracing is set up once in a process, when it starts."""
    from .conftest import SHARED

    SHARED.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        port = free_port()
        ray.init(num_cpus=8, include_dashboard=False, logging_level="warning", namespace="traces")
        try:
            serve.start(
                http_options={"host": "127.0.0.1", "port": port},
                tracing_config=TracingConfig(
                    enabled=True,
                    exporter_import_path="prism_ray.telemetry.tracing:otlp_exporter",
                    sampling_ratio=1.0,
                ),
            )
            serve.run(assemble(PrismConfig.load(CONFIG)), name="default", route_prefix="/")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as found:
                wait_until(lambda: found.get("/ready").status_code == 200, "not ready", 30.0)
                yield found
        finally:
            serve.shutdown()
            ray.shutdown()


def ask(client: httpx.Client, headers: dict[str, str] | None = None, **more: Any) -> str:
    """Ask for an answer of eight tokens; its request id."""
    answer = client.post(CHAT, json=chat(max_tokens=8, **more), headers=headers)
    assert answer.status_code == 200, answer.text
    if not more.get("stream"):
        return str(answer.json()["id"]).rpartition("-")[2]
    return answer.text.split('"id": "', 1)[1].split('"', 1)[0].rpartition("-")[2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_tree_below_serves_own_span(
    client: httpx.Client, collector: Collector, stream: bool
) -> None:
    request_id = ask(client, stream=stream)
    tree = collector.tree_of(request_id)
    assert sorted(tree) == sorted(["prism.ingress", "prism.decision", *BELOW_INGRESS])
    ingress = tree["prism.ingress"]
    for name in BELOW_INGRESS:
        assert tree[name].parent == ingress.id
    assert tree["prism.decision"].parent == tree["prism.queue_wait"].id

    wait_until(
        lambda: any(s.id == ingress.parent for s in list(collector.spans)), "no span of Serve's"
    )
    by_id = {s.id: s for s in collector.spans if s.trace == ingress.trace}
    above = by_id[ingress.parent]
    while above.parent:
        assert above.parent in by_id, f"{above.name} hangs nowhere"
        above = by_id[above.parent]
    assert not above.name.startswith("prism."), "Serve's proxy opened the trace"

    one, two, three = (tree[name] for name in BELOW_INGRESS)
    assert one.start_s == pytest.approx(ingress.start_s, abs=1e-5)
    assert two.start_s == pytest.approx(one.end_s, abs=1e-5)
    assert three.start_s == pytest.approx(two.end_s, abs=1e-5)
    assert ingress.start_s < two.start_s < two.end_s <= three.end_s <= ingress.end_s
    decision = tree["prism.decision"]
    assert one.start_s <= decision.start_s <= decision.end_s <= one.end_s + 1e-5
    assert ingress.attributes["prism.outcome"] == "ok"
    assert ingress.attributes["prism.output_tokens"] == 8
    assert ingress.attributes["prism.stream"] is stream


def test_the_decisions_reason_is_the_one_that_was_decided_by(
    client: httpx.Client, collector: Collector
) -> None:
    request_id = ask(client, prism={"report": True})
    told = collector.tree_of(request_id)["prism.decision"].attributes
    explained = client.get(f"/prism/explain/{request_id}").json()
    assert told["prism.reason"] == explained["reason"] != ""
    assert told["prism.replica"] == explained["replica"]
    assert told["prism.lane"] in ("hot", "cold")


def test_the_clients_own_trace_is_gone_on_with(client: httpx.Client, collector: Collector) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    request_id = ask(client, {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    assert collector.tree_of(request_id)["prism.ingress"].trace == trace_id


def test_what_the_client_did_not_sample_is_not_recorded(
    client: httpx.Client, collector: Collector
) -> None:
    trace_id = "11111111111111111111111111111111"
    ask(client, {"traceparent": f"00-{trace_id}-b7ad6b7169203331-00"})
    later = ask(client)
    collector.tree_of(later)
    assert not [s for s in collector.spans if s.trace == trace_id]


def test_no_words_of_a_client_are_in_any_span(client: httpx.Client, collector: Collector) -> None:
    part = {"type": "text", "text": "secret words", "prism": {"segment": "secret label"}}
    body = chat()
    body["messages"][0]["content"] = [part]
    answer = client.post(CHAT, json=body)
    collector.tree_of(answer.json()["id"].rpartition("-")[2])
    assert not [s for s in collector.spans if "secret" in repr(s)]
