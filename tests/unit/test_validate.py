"""``prism-ray validate``: what each file is taken for, what is refused, and the exit code."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from prism_ray.cli import main
from prism_ray.config import PrismConfig
from prism_ray.engine_args import ModelShape, estimate_pool, server_args, shipped_model_config
from prism_ray.validate import Kind, kind_of, validate, validate_document

QWEN, LLAMA = "a800-qwen3-4b", "a800-llama2-13b"


def serve(args: dict[str, Any] | None = None, **application: Any) -> dict[str, Any]:
    return {
        "applications": [
            {
                "name": "prism",
                "route_prefix": "/",
                "import_path": "prism_ray:app",
                "args": {"config": "simulated"} if args is None else args,
                **application,
            }
        ]
    }


def cluster(**changes: Any) -> dict[str, Any]:
    provider = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]}
    return {"cluster_name": "c", "provider": provider, **changes}


def paths(document: Any) -> list[str]:
    return [p.path for p in validate_document(document, "file").problems]


class TestKinds:
    @pytest.mark.parametrize(
        ("document", "kind"),
        [
            ({"extends": "simulated"}, Kind.PRISM),
            ({"model": {}}, Kind.PRISM),
            (serve(), Kind.SERVE),
            (cluster(), Kind.CLUSTER),
            ({"apiVersion": "ray.io/v1", "kind": "RayService"}, Kind.RAYSERVICE),
            ({"apiVersion": "v1", "kind": "Service"}, Kind.OTHER_KUBERNETES),
            ({"services": {"a": {"image": "b:1"}}}, Kind.COMPOSE),
            ({"something": 1}, Kind.UNKNOWN),
            (["a", "list"], Kind.UNKNOWN),
        ],
    )
    def test_a_document_is_told_by_its_keys(self, document, kind):
        assert kind_of(document) is kind

    def test_what_is_of_no_kind_is_an_error(self):
        assert paths({"something": 1}) == ["file"]
        assert paths(["a", "list"]) == ["file"]


def qas(**params: object) -> dict[str, object]:
    return {"scheduler": {"policy": "qas", "params": params}}


class TestPrismConfigs:
    def test_a_policy_that_does_not_exist_is_named_with_those_that_do(self):
        report = validate_document({"extends": "simulated", "scheduler": {"policy": "qaz"}}, "file")
        (problem,) = report.problems
        assert problem.path == "scheduler.policy"
        assert "qas" in problem.expected

    def test_a_parameter_that_the_policy_does_not_have_is_refused(self):
        document = {"extends": "simulated", "scheduler": {"policy": "qas", "params": {"f_font": 3}}}
        (problem,) = validate_document(document, "file").problems
        assert problem.path == "scheduler.params.f_font"
        assert "did you mean 'f_front'?" in problem.expected

    @pytest.mark.parametrize(
        ("section", "path", "expected"),
        [
            (qas(kappa="x"), "scheduler.params.kappa", "a whole number"),
            (qas(q_cold=99), "scheduler.params.q_cold", "batch_max 32"),
            (
                {"scheduler": {"params": {"window_max": 0}}},
                "scheduler.params.window_max",
                "at least 1",
            ),
            ({"placement": {"params": {"x": 1}}}, "placement.params.x", "takes no parameters"),
            (
                {"retention": {"params": {"protect_share": 2}}},
                "retention.params.protect_share",
                "a number from 0 to 1",
            ),
            (
                {"engine": {"simulated": {"pool_tokens": "many"}}},
                "engine.simulated.pool_tokens",
                "a whole number",
            ),
            (
                {"engine": {"simulated": {"speed": 0}}},
                "engine.simulated.speed",
                "a number above 0",
            ),
        ],
    )
    def test_a_wrong_parameter_is_named_by_its_own_key(self, section, path, expected):
        (problem,) = validate_document({"extends": "simulated", **section}, "file").problems
        assert problem.path == path
        assert expected in problem.expected

    def test_every_wrong_parameter_is_named(self):
        params = {"f_font": 3, "kappa": 0, "batch_max": 16}
        document = {"extends": "simulated", "scheduler": {"policy": "qas", "params": params}}
        assert sorted(paths(document)) == ["scheduler.params.f_font", "scheduler.params.kappa"]

    def test_two_parameters_that_contradict_each_other_are_one_problem(self):
        params = {"q_cold": 30, "batch_max": 16}
        document = {"extends": "simulated", "scheduler": {"policy": "qas", "params": params}}
        assert paths(document) == ["scheduler.params.q_cold"]

    def test_retention_is_checked_for_the_real_engine_too(self):
        document = {"extends": "cpu-smollm2", "retention": {"params": {"protect_anchors": "x"}}}
        assert paths(document) == ["retention.params.protect_anchors"]

    def test_unknown_placement_and_retention_are_refused(self):
        document = {
            "extends": "simulated",
            "placement": {"policy": "nowhere"},
            "retention": {"policy": "nothing"},
        }
        assert sorted(paths(document)) == ["placement.policy", "retention.policy"]

    def test_parameters_of_retention_and_of_the_simulated_engine_are_checked(self):
        retention = {"extends": "simulated", "retention": {"params": {"anchors": 3}}}
        assert paths(retention) == ["retention.params.anchors"]
        share = {"extends": "simulated", "engine": {"simulated": {"pool": 3}}}
        assert paths(share) == ["engine.simulated.pool"]

    def test_a_model_that_is_not_here_stays_unchecked_and_is_no_error(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PRISM_MODELS_DIR", str(tmp_path))
        (report,) = validate("cpu-smollm2")
        assert report.ok
        assert any("fetch-model" in note for note in report.notes)


class TestServeConfigs:
    def test_a_config_in_place_is_checked_with_its_whole_path(self):
        document = serve({"config": {"extends": "simulated", "replicas": {"cuont": 1}}})
        assert paths(document) == ["applications.0.args.config.replicas.cuont"]

    def test_a_config_by_name_is_checked(self):
        assert paths(serve({"config": "no-such"})) == ["applications.0.args.config.config"]

    def test_a_key_that_serve_would_ignore_is_refused(self):
        document = serve(deployments=[{"name": "Ingress", "max_onging_requests": 9}])
        assert paths(document) == ["applications.0.deployments.0.max_onging_requests"]
        assert paths({**serve(), "htp_options": {}}) == ["htp_options"]
        assert paths({**serve(), "http_options": {"prot": 1}}) == ["http_options.prot"]

    def test_serves_own_schema_is_applied(self):
        document = serve()
        del document["applications"][0]["import_path"]
        assert paths(document) == ["applications.0.import_path"]
        assert paths({**serve(), "http_options": {"port": "many"}}) == ["http_options.port"]

    def test_arguments_that_the_builder_does_not_take_are_refused(self):
        assert paths(serve({"cfg": "simulated"})) == ["applications.0.args.cfg"]

    def test_without_a_config_the_choice_is_left_to_the_start(self):
        report = validate_document(serve({}), "file")
        assert report.ok
        assert "GPU" in report.notes[0]

    def test_another_attribute_of_ours_is_refused_and_another_package_is_left_alone(self):
        assert paths(serve(import_path="prism_ray:application")) == ["applications.0.import_path"]
        report = validate_document(serve({"x": 1}, import_path="other:app"), "file")
        assert report.ok
        assert "not ours" in report.notes[0]

    @pytest.mark.parametrize("name", ["Ingress", "Replica"])
    def test_a_cap_below_the_derived_one_is_refused(self, name):
        config = PrismConfig.load("simulated")
        least = {
            "Ingress": config.ingress_max_ongoing_requests,
            "Replica": config.replica_max_ongoing_requests,
        }[name]

        def with_cap(cap: int) -> dict[str, Any]:
            return serve(deployments=[{"name": name, "max_ongoing_requests": cap}])

        assert paths(with_cap(least)) == []
        assert paths(with_cap(least - 1)) == ["applications.0.deployments.0.max_ongoing_requests"]

    def test_serves_own_rule_for_the_number_of_replicas_is_refused(self):
        for option in ({"num_replicas": "auto"}, {"autoscaling_config": {"max_replicas": 4}}):
            own = serve(deployments=[{"name": "Replica", **option}])
            assert paths(own) == [f"applications.0.deployments.0.{next(iter(option))}"]
        assert paths(serve(deployments=[{"name": "Ingress", "num_replicas": 2}])) == []

    def test_serves_own_queue_limit_and_foreign_deployments_are_refused(self):
        queue = serve(deployments=[{"name": "Ingress", "max_queued_requests": 10}])
        assert paths(queue) == ["applications.0.deployments.0.max_queued_requests"]
        assert paths(serve(deployments=[{"name": "Engine"}])) == [
            "applications.0.deployments.0.name"
        ]


class TestClusterConfigs:
    def test_rays_schema_is_applied(self):
        assert paths(cluster()) == []
        assert paths(cluster(setup_comands=[])) == ["file"]
        assert paths(cluster(max_workers="many")) == ["max_workers"]

    def test_machines_of_ones_own_need_addresses(self):
        document = cluster(provider={"type": "local"})
        assert paths(document) == ["provider.head_ip", "provider.worker_ips"]

    def test_min_workers_is_taken_where_ray_takes_it(self):
        assert paths(cluster(min_workers=1)) == []
        assert paths(cluster(min_workers=1, provider={"type": "aws", "region": "r"})) == ["file"]

    def test_a_cloud_needs_its_own_keys(self):
        assert paths(cluster(provider={"type": "aws"})) == ["provider.region"]
        gcp = {"type": "gcp", "region": "r", "availability_zone": "a"}
        assert paths(cluster(provider=gcp)) == ["provider.project_id"]

    def test_the_head_has_a_node_type_and_the_least_of_all_fits_the_most(self):
        nodes = {
            "available_node_types": {
                "gpus": {"node_config": {}, "resources": {}, "min_workers": 3}
            },
            "head_node_type": "head",
            "provider": {"type": "aws", "region": "r"},
        }
        assert paths(cluster(**nodes)) == ["head_node_type", "max_workers"]
        assert paths(cluster(**{**nodes, "head_node_type": "gpus", "max_workers": 3})) == []

    def test_an_open_dashboard_and_an_image_without_a_version_are_pointed_out(self):
        open_ = cluster(
            head_start_ray_commands=["ray start --head --dashboard-host=0.0.0.0"],
            docker={"image": "ours:latest", "container_name": "c"},
        )
        dashboard, image = validate_document(open_, "file").notes
        assert "0.0.0.0" in dashboard
        assert "ours:latest" in image


def rayservice(serve_config: object = None, **cluster: Any) -> dict[str, Any]:
    group = {"template": {"spec": {"containers": [{"name": "ray", "image": "ours:1"}]}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "spec": {
            "serveConfigV2": yaml.safe_dump(serve()) if serve_config is None else serve_config,
            "rayClusterConfig": {
                "rayVersion": version("ray"),
                "headGroupSpec": group,
                "workerGroupSpecs": [{"groupName": "w", **group}],
                **cluster,
            },
        },
    }


class TestRayServices:
    CLUSTER = "spec.rayClusterConfig"
    FT = f"{CLUSTER}.gcsFaultToleranceOptions"

    def test_the_text_inside_is_checked_as_a_serve_config(self):
        wrong = yaml.safe_dump(serve({"config": {"extends": "simulated", "modle": {}}}))
        assert paths(rayservice()) == []
        assert paths(rayservice(wrong)) == ["spec.serveConfigV2.applications.0.args.config.modle"]

    def test_a_mapping_in_its_place_is_refused(self):
        assert paths(rayservice(serve())) == ["spec.serveConfigV2"]

    def test_another_version_of_ray_is_refused(self):
        assert paths(rayservice(rayVersion="2.9.0")) == [f"{self.CLUSTER}.rayVersion"]

    def test_start_parameters_are_text(self):
        head = {**rayservice()["spec"]["rayClusterConfig"]["headGroupSpec"]}
        head["rayStartParams"] = {"num-cpus": 0, "num-gpus": "0"}
        found = paths(rayservice(headGroupSpec=head))
        assert found == [f"{self.CLUSTER}.headGroupSpec.rayStartParams.num-cpus"]

    def test_every_group_has_a_container_with_an_image(self):
        bare = {"template": {"spec": {"containers": [{"name": "ray"}]}}}
        found = paths(rayservice(headGroupSpec={}, workerGroupSpecs=[bare]))
        assert found == [
            f"{self.CLUSTER}.headGroupSpec.template.spec.containers",
            f"{self.CLUSTER}.workerGroupSpecs.0.template.spec.containers.0.image",
        ]

    def test_without_fault_tolerance_there_is_a_word_about_the_heads_death(self):
        secret = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
        options = {"redisAddress": "redis:6379", "redisPassword": secret}
        assert any("head" in note for note in validate_document(rayservice(), "file").notes)
        tolerant = rayservice(gcsFaultToleranceOptions=options)
        assert validate_document(tolerant, "file").notes == []

    def test_passwords_in_the_file_and_a_shared_namespace_are_refused(self):
        options = {
            "redisAddress": "redis:6379",
            "redisPassword": {"value": "x"},
            "externalStorageNamespace": "ours",
        }
        assert paths(rayservice(gcsFaultToleranceOptions=options)) == [
            f"{self.FT}.redisPassword.value",
            f"{self.FT}.externalStorageNamespace",
        ]
        assert paths(rayservice(gcsFaultToleranceOptions={})) == [f"{self.FT}.redisAddress"]

    @pytest.mark.parametrize(
        ("address", "url", "shared"),
        [
            ("redis:6379", "redis://redis:6379", True),
            ("redis:6379", "redis://:pw@redis/0", True),
            ("redis://redis:6379", "redis://redis:6379/0", True),
            ("redis:6379", "redis://redis:6379/1", False),
            ("redis:6379", "redis://another:6379/0", False),
            ("redis:6379", "redis://redis:6380/0", False),
        ],
    )
    def test_telemetry_in_the_database_of_gcs_is_refused(self, address, url, shared):
        config = {"extends": "simulated", "redis": {"url": url}}
        document = rayservice(
            yaml.safe_dump(serve({"config": config})),
            gcsFaultToleranceOptions={"redisAddress": address},
        )
        path = "spec.serveConfigV2.applications.0.args.config.redis.url"
        assert paths(document) == ([path] if shared else [])


class TestComposeFiles:
    def test_what_a_service_refers_to_must_be_there(self):
        document = {
            "services": {
                "a": {
                    "image": "b:1",
                    "depends_on": ["c"],
                    "secrets": ["key", {"source": "other"}],
                    "volumes": ["./here:/there", "data:/data", "/host:/in"],
                    "networks": {"back": None},
                }
            },
            "secrets": {"key": {"file": "k"}},
        }
        assert sorted(paths(document)) == [
            "services.a.depends_on",
            "services.a.networks",
            "services.a.secrets",
            "services.a.volumes",
        ]
        document |= {"volumes": {"data": None}, "networks": {"back": None}}
        document["secrets"]["other"] = {"file": "o"}
        document["services"]["c"] = {"build": "."}
        assert paths(document) == []

    def test_a_service_needs_an_image_and_the_file_known_keys(self):
        assert paths({"services": {"a": {}}}) == ["services.a"]
        assert paths({"services": {}}) == ["services"]
        document = {"services": {"a": {"image": "b:1"}}, "volume": {}, "x-mine": {}}
        assert paths(document) == ["volume"]

    @pytest.mark.parametrize(
        ("image", "pinned"),
        [
            ("redis", False),
            ("redis:latest", False),
            ("host:5000/redis", False),
            ("host:5000/redis:7.4.2", True),
            ("redis@sha256:" + "0" * 64, True),
        ],
    )
    def test_an_image_without_a_version_is_pointed_out(self, image, pinned):
        notes = validate_document({"services": {"a": {"image": image}}}, "file").notes
        assert bool(notes) is not pinned


class TestTextFiles:
    def found(self, file: Path, text: str) -> tuple[Kind, list[str]]:
        file.write_text(text)
        (report,) = validate(str(file))
        return report.kind, [problem.path for problem in report.problems]

    @pytest.mark.parametrize(
        ("text", "problems"),
        [
            ("# a word\n\nport 6379\nsave ''\nmaxmemory 1gb\n", []),
            ("databases two\n", ["databases"]),
            ("maxmemory-policy some\n", ["maxmemory-policy"]),
            ("maxmemory 1 gb\n", ["maxmemory"]),
            ("appendonly\n", ["line 1"]),
            ("port 1\ndir '/data\n", ["line 2"]),
            ("requirepass hunter2\n", ["requirepass"]),
        ],
    )
    def test_redis_settings(self, tmp_path, text, problems):
        assert self.found(tmp_path / "redis.conf", text) == (Kind.REDIS, problems)

    def test_a_password_is_not_repeated(self, tmp_path):
        file = tmp_path / "redis.conf"
        file.write_text("requirepass hunter2\n")
        (report,) = validate(str(file))
        assert "hunter2" not in " ".join(map(str, report.problems))

    @pytest.mark.parametrize(
        ("text", "problems"),
        [
            ("# ours\nARG V=1\nFROM a:1 AS b\nFROM b\nRUN x \\\n && y\n", []),
            ("RUN x\nFROM a:1\n", ["line 1"]),
            ("FROM a:1\nRNU x\n", ["line 2"]),
            ("FROM\n", ["line 1"]),
        ],
    )
    def test_dockerfiles(self, tmp_path, text, problems):
        assert self.found(tmp_path / "Dockerfile", text) == (Kind.DOCKERFILE, problems)

    def test_an_empty_dockerfile_is_refused(self, tmp_path):
        kind, problems = self.found(tmp_path / "Dockerfile", "# nothing\n")
        assert kind is Kind.DOCKERFILE
        assert len(problems) == 1


class TestCommand:
    def run(self, *args: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["validate", *args])
        return result.exit_code, result.output

    def test_it_says_what_a_file_was_taken_for_and_exits_0(self):
        code, output = self.run("simulated")
        assert code == 0
        assert "simulated: prism_ray config: ok" in output

    def test_one_wrong_file_among_right_ones_exits_1(self, tmp_path: Path):
        file = tmp_path / "wrong.yaml"
        file.write_text("model: {name: m, path: p, pth: q}")
        code, output = self.run("simulated", str(file))
        assert code == 1
        assert "model.pth: expected one of the keys name, path, tokenizer" in output

    def test_a_missing_or_broken_file_exits_1_without_a_traceback(self, tmp_path: Path):
        file = tmp_path / "broken.yaml"
        file.write_text("a: [")
        for source in (str(file), str(tmp_path / "none.yaml")):
            code, output = self.run(source)
            assert code == 1
            assert "Traceback" not in output

    def test_each_document_of_a_file_has_its_own_report(self, tmp_path: Path):
        file = tmp_path / "two.yaml"
        file.write_text("extends: simulated\n---\nextends: nothing\n")
        code, output = self.run(str(file))
        assert code == 1
        assert f"{file}#1: prism_ray config: ok" in output
        assert f"{file}#2: prism_ray config: wrong" in output


class TestPoolSize:
    """Figures of the paper's setting: KV bytes a token, and pools of about 4e5 and 5e4 tokens."""

    def estimate(self, preset: str, **more: Any) -> Any:
        config = PrismConfig.load(preset)
        assert config.model.path is not None
        shipped = shipped_model_config(config.model.path)
        assert shipped is not None
        args = {**server_args(config, "dir", "tok"), **more}
        return estimate_pool(ModelShape.from_config(shipped), args)

    @pytest.mark.parametrize(
        ("preset", "kib", "parameters", "tokens"),
        [(QWEN, 144, 4.02e9, 4e5), (LLAMA, 800, 13.0e9, 5e4)],
    )
    def test_the_papers_models_have_its_bytes_and_about_its_pools(
        self, preset, kib, parameters, tokens
    ):
        pool = self.estimate(preset)
        assert pool.kv_bytes_per_token == kib * 1024
        assert pool.weight_bytes / 2 == pytest.approx(parameters, rel=0.005)
        assert pool.tokens == pytest.approx(tokens, rel=0.06)

    def test_a_cap_binds_only_below_what_fits(self):
        free = self.estimate(QWEN).tokens
        assert self.estimate(QWEN, max_total_tokens=1000).tokens == 1000
        assert self.estimate(QWEN, max_total_tokens=10 * free).tokens == free

    def test_one_byte_caches_hold_twice_as_much(self):
        assert self.estimate(QWEN, kv_cache_dtype="fp8_e4m3").tokens == pytest.approx(
            2 * self.estimate(QWEN).tokens, abs=1
        )

    def test_two_gpus_hold_more_than_twice_as_much_since_weights_are_shared(self):
        one, two = self.estimate(LLAMA).tokens, self.estimate(LLAMA, tp_size=2).tokens
        assert two > 2 * one

    def test_weights_that_do_not_fit_leave_no_pool(self):
        assert self.estimate(LLAMA, mem_fraction_static=0.1).tokens == 0
