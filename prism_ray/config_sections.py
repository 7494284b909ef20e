"""The sections of a PrismConfig: every setting with its type, range, default and what it means.

What no section can see alone is checked in ``config_checks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

from prism_ray.config_errors import ConfigError, Problem
from prism_ray.config_files import located

Params = dict[str, Any]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the config: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelConfig(Section):
    """Which model is served, and under which name."""

    name: str = Field(min_length=1, description="Name that clients send as `model`.")
    path: str | None = Field(
        None,
        description="Directory or Hugging Face id; `models:NAME` is a directory of models_dir(). "
        "Only the simulated engine can do without.",
    )
    tokenizer: str | None = Field(
        None, description="Directory or Hugging Face id of the tokenizer; default: `path`."
    )

    def resolved_path(self) -> str:
        """The path an engine can load; ConfigError if a `models:` directory is not there."""
        if self.path is None:
            raise ConfigError([Problem("model.path", "a directory or Hugging Face id", None)])
        return located(self.path, "model.path")

    def resolved_tokenizer(self) -> str:
        """Where the tokenizer is (`builtin` passes through); ConfigError as in resolved_path."""
        if self.tokenizer is None:
            return self.resolved_path()
        return located(self.tokenizer, "model.tokenizer")


class EngineConfig(Section):
    """The inference engine of each replica."""

    kind: Literal["sglang", "simulated"] = "sglang"
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto", description="`auto`: cuda where replicas get a GPU, else cpu."
    )
    args: Params = Field(
        default_factory=dict, description="SGLang ServerArgs by field name, over our defaults."
    )
    simulated: Params = Field(
        default_factory=dict, description="Parameters of the simulated engine."
    )


class AutoscalingConfig(Section):
    """When Serve starts and stops replicas: marks between which their number stays as it is.

    Waiting prefill is in seconds of a replica's measured speed; a replica is busy while it owes a
    prefill, or by the share of its slots that are taken.
    """

    max_count: int = Field(ge=1, description="Most replicas; the least is `replicas.count`.")
    work_high_s: float = Field(
        2.0, gt=0, description="Seconds of prefill that wait per replica: beyond, add replicas."
    )
    work_low_s: float = Field(
        0.5, gt=0, description="Seconds of prefill that may wait for each once there are fewer."
    )
    busy_high: float = Field(
        0.8, gt=0, le=1, description="Share of its time that a replica is busy: beyond, add some."
    )
    busy_low: float = Field(
        0.5, gt=0, le=1, description="Share that each may be busy once there are fewer."
    )
    up_delay_s: float = Field(
        10.0, ge=0, description="Seconds that more must be needed before they are started."
    )
    down_delay_s: float = Field(
        300.0, ge=0, description="Seconds that fewer must do before one is stopped."
    )
    window_s: float = Field(
        10.0, gt=0, description="Seconds over which what replicas say is averaged."
    )


class ReplicaConfig(Section):
    """The engine replicas: how many, how large, how far ahead they are fed."""

    count: int = Field(
        1, ge=1, description="Replicas, one engine each; with `autoscaling` the least."
    )
    autoscaling: AutoscalingConfig | None = Field(
        None, description="Let Serve change their number with the load; default: it stays."
    )
    max_running: int = Field(64, ge=1, description="Requests in one engine at a time.")
    prefill_ahead_tokens: int | None = Field(
        None,
        ge=1,
        description="Predicted uncached tokens that may be sent and not yet prefilled; default: "
        "twice the engine's chunked_prefill_size, with chunking off twice max_prefill_tokens.",
    )
    num_cpus: float = Field(1.0, ge=0, description="Ray CPUs per replica.")
    num_gpus: float = Field(0.0, ge=0, description="Ray GPUs per replica; 0 runs on CPU.")
    drain_s: float = Field(
        120.0, gt=0, description="Seconds that a stopping replica has for the requests it holds."
    )
    surge_percent: int = Field(
        0,
        ge=0,
        le=100,
        description="Replicas that an update starts before it stops old ones, in percent of `count`. "
        "Their GPUs must be free, else the update waits; 0 stops old ones first.",
    )
    body_wait_s: float = Field(
        0.05,
        ge=0,
        description="Seconds that a plan's submission waits for a late body, at least; on a slow "
        "path it waits longer.",
    )

    @property
    def most(self) -> int:
        """The most replicas that there will be."""
        return self.count if self.autoscaling is None else self.autoscaling.max_count


class IngressConfig(Section):
    """The HTTP side: OpenAI surface, tokenizer, hold on the bodies of waiting requests."""

    count: int = Field(1, ge=1, description="Ingress replicas.")
    num_cpus: float = Field(
        0.5,
        ge=0,
        description="Ray CPUs per ingress replica. An update starts the new ones first, so as many "
        "again must be free.",
    )
    drain_s: float = Field(
        120.0, gt=0, description="Seconds that a stopping ingress has for the requests it holds."
    )


class SchedulerConfig(Section):
    """Which policy orders the window, and how often it does."""

    policy: str = Field("prism", min_length=1)
    params: Params = Field(default_factory=dict, description="Parameters of that policy.")
    round_interval_s: float = Field(
        0.020,
        ge=0,
        description="Least seconds between rounds (the paper's window); an idle replica with "
        "credit starts one at once.",
    )
    resources: dict[str, float] = Field(
        default_factory=dict,
        description="Ray resources of the QAS actor, such as one that only some nodes have. It "
        "takes no CPUs, so without this it may live on any node.",
    )


class RetentionConfig(Section):
    """What each engine's KV-cache keeps."""

    policy: str = Field(
        "planned",
        min_length=1,
        description="Where it isn't given: what `scheduler.policy` was made for (`planned` for "
        "`prism`, `dart` for `qas`).",
    )
    params: Params = Field(default_factory=dict, description="Parameters of that policy.")


class PlacementConfig(Section):
    """Which replica a request goes to."""

    policy: str = Field("single", min_length=1)
    params: Params = Field(default_factory=dict, description="Parameters of that policy.")


class SegmentsConfig(Section):
    """How prompts become segments."""

    automatic_min_tokens: int = Field(
        64, ge=1, description="Shorter unmarked pieces are private text, not segments."
    )
    label_max_chars: int = Field(64, ge=1, description="Longest client label.")
    count_max: int = Field(256, ge=1, description="Most segments of one prompt.")
    bytes_max: int = Field(1 << 20, ge=1, description="Bytes of one marked segment's text.")


class LimitsConfig(Section):
    """What one request may ask for, and how much may wait."""

    queue_requests: int = Field(4096, ge=1, description="Requests waiting in the window.")
    queue_tokens: int = Field(16_000_000, ge=1, description="Prompt tokens waiting.")
    queue_bytes: int = Field(512 << 20, ge=1, description="Bytes of bodies waiting, per ingress.")
    body_bytes: int = Field(8 << 20, ge=1, description="Bytes of one request body.")
    max_tokens: int = Field(4096, ge=1, description="Largest output length a client may ask for.")
    default_max_tokens: int = Field(512, ge=1, description="Output length when none was asked for.")
    n: int = Field(8, ge=1, description="Most choices of one request.")
    retries: int = Field(3, ge=0, description="New decisions after a replica died early.")
    client_stall_s: float = Field(30.0, gt=0, description="Seconds a client may not read.")
    keepalive_after_s: float = Field(
        5.0, gt=0, description="Seconds without a decision until a stream opens with comments."
    )
    qas_timeout_s: float = Field(
        1.0, gt=0, description="Seconds without the scheduler until ingresses dispatch directly."
    )
    json_depth: int = Field(32, ge=4, description="Nesting of a JSON body.")


class AuthConfig(Section):
    """Who may ask. Keys are in files, so that a secret never travels in the config."""

    keys_file: str | None = Field(
        None,
        description="YAML file `key: tenant` on every ingress's node; requests then need one of its "
        "keys. Default: no keys, the tenant is the header x-prism-tenant.",
    )
    admin_key_file: str | None = Field(
        None,
        description="File with the key of /flush_cache and /prism/*. Default: they are open, if "
        "Serve's HTTP listener is bound to loopback, else closed.",
    )


class TenantsConfig(Section):
    """How tenants share what there is, once there is more than one."""

    weights: dict[str, Weight] = Field(
        default_factory=dict, description="Shares by tenant's name, against others that wait."
    )
    default_weight: Weight = Field(1.0, description="Weight of tenants that are not named.")
    queue_requests: int | None = Field(
        None,
        ge=1,
        description="Requests of one tenant that may wait; default: limits.queue_requests.",
    )
    queue_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt tokens of one tenant that may wait; default: limits.queue_tokens.",
    )


class RedisConfig(Section):
    """The telemetry store; serving never waits for it."""

    url: str | None = Field(
        None,
        pattern=r"^(rediss?|unix)://",
        description="redis://, rediss:// or unix://; default: a private server of our own.",
    )
    password_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable of the Ray processes that holds the password of `url`.",
    )
    namespace: str = Field("prism", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Key prefix.")
    snapshot_ttl_s: float = Field(15.0, gt=0, description="Seconds a replica snapshot lives.")
    decisions_max: int = Field(10_000, ge=1, description="Length of the decision stream.")
    decisions_ttl_s: float = Field(
        3600.0, gt=0, description="Seconds the decision stream outlives its last decision."
    )
    top_segments: int = Field(100, ge=1, description="Segments whose counters are stored.")

    def authenticated_url(self, environment: Mapping[str, str]) -> str | None:
        """``url`` with the password that ``environment`` holds; ConfigError if it holds none."""
        if self.url is None or self.password_env is None:
            return self.url
        password = environment.get(self.password_env)
        if not password:
            expected = f"the environment variable {self.password_env} in every Ray process"
            raise ConfigError([Problem("redis.password_env", expected, None)])
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        user = quote(parts.username or "", safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
