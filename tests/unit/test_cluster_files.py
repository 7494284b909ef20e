"""Every file of ``configs/`` and ``cluster/``: its kind, and the rules of the house for such files.

``prism-ray validate`` says whether a file can work; here is also what ours must not do: name images
without a version, open a dashboard, hold a password, put QAS on a head.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from prism_ray.cli import main
from prism_ray.config import PrismConfig
from prism_ray.validate import Kind, validate

ROOT = Path(__file__).resolve().parents[2]
CLUSTER, CONFIGS = ROOT / "cluster", ROOT / "configs"
FILES = sorted(
    path
    for folder in (CLUSTER, CONFIGS)
    for path in folder.rglob("*")
    if path.is_file() and path.name not in ("ray-token", "redis-password")  # made by hand
)
KINDS = {
    "cluster/Dockerfile": [Kind.DOCKERFILE],
    "cluster/aws.yaml": [Kind.CLUSTER],
    "cluster/azure.yaml": [Kind.CLUSTER],
    "cluster/compose.yaml": [Kind.COMPOSE],
    "cluster/gcp.yaml": [Kind.CLUSTER],
    "cluster/kuberay-redis.yaml": [Kind.OTHER_KUBERNETES] * 3,
    "cluster/kuberay.yaml": [Kind.RAYSERVICE, Kind.OTHER_KUBERNETES],
    "cluster/kustomization.yaml": [Kind.OTHER_KUBERNETES],
    "cluster/onprem.yaml": [Kind.CLUSTER],
    "cluster/redis.conf": [Kind.REDIS],
    "grafana/dashboards.yaml": [Kind.GRAFANA],
    "grafana/datasources.yaml": [Kind.GRAFANA],
    "grafana/prism.json": [Kind.DASHBOARD],
    "prometheus/one-machine.yaml": [Kind.PROMETHEUS],
    "prometheus/prometheus.yaml": [Kind.PROMETHEUS],
    "configs/a800-llama2-13b.yaml": [Kind.PRISM],
    "configs/a800-qwen3-4b.yaml": [Kind.PRISM],
    "configs/cpu-smollm2.yaml": [Kind.PRISM],
    "configs/serve-4-replicas.yaml": [Kind.SERVE],
    "configs/serve-8-replicas.yaml": [Kind.SERVE],
    "configs/serve-autoscaling.yaml": [Kind.SERVE],
    "configs/serve-compose.yaml": [Kind.SERVE],
    "configs/serve-simulated.yaml": [Kind.SERVE],
    "configs/serve-tp2.yaml": [Kind.SERVE],
    "configs/serve.yaml": [Kind.SERVE],
    "configs/simulated.yaml": [Kind.PRISM],
}
LAUNCHED = ("onprem", "aws", "gcp", "azure")
CLOUDS = LAUNCHED[1:]
SERVED = sorted(CONFIGS.glob("serve*.yaml"))


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def cluster_file(stem: str) -> dict[str, Any]:
    (document,) = documents(CLUSTER / f"{stem}.yaml")
    return document


def rayservice() -> dict[str, Any]:
    return documents(CLUSTER / "kuberay.yaml")[0]


def prism_config(serve: dict[str, Any]) -> PrismConfig:
    (application,) = serve["applications"]
    return PrismConfig.load(application["args"]["config"])


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_file_is_taken_for_what_it_is_and_is_right(path):
    reports = validate(str(path))
    assert [report.kind for report in reports] == KINDS[name(path)]
    for report in reports:
        assert report.problems == []
        assert not [note for note in report.notes if note.startswith("advice")]


def test_the_command_line_says_the_kind_of_every_file():
    done = CliRunner().invoke(main, ["validate", *map(str, FILES)])
    assert done.exit_code == 0, done.output
    for path in FILES:
        for kind in KINDS[name(path)]:
            assert re.search(rf"{re.escape(str(path))}(#\d+)?: {re.escape(kind)}: ok", done.output)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_holds_a_password_or_a_key(path):
    words = r"(password|passwd|secret|token|requirepass|api[_-]?key)"
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("#"):
            continue
        given = re.search(rf"{words}[\"']?\s*[:= ]\s*[\"']?([A-Za-z0-9+/]{{8,}})", line, re.I)
        assert given is None or given[2] in ("PRISM_REDIS_PASSWORD",), line


class TestClusterConfigs:
    @pytest.mark.parametrize("stem", LAUNCHED)
    def test_rays_own_schema_holds(self, stem):
        schema = json.loads((resources.files("ray.autoscaler") / "ray-schema.json").read_text())
        jsonschema.validate(cluster_file(stem), schema)

    @pytest.mark.parametrize("stem", LAUNCHED)
    def test_ray_takes_it_as_ray_up_does(self, stem):
        validate_config(prepare_config(cluster_file(stem)))

    @pytest.mark.parametrize("stem", LAUNCHED)
    def test_the_head_has_no_cpus_and_its_dashboard_is_on_loopback(self, stem):
        command = cluster_file(stem)["head_start_ray_commands"][-1]
        assert "--num-cpus=0" in command
        assert "--num-gpus=0" in command
        assert re.findall(r"--dashboard-host=(\S+)", command) == ["127.0.0.1"]

    @pytest.mark.parametrize("stem", LAUNCHED)
    def test_ray_asks_for_its_token_on_every_machine(self, stem):
        document = cluster_file(stem)
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            command = document[key][-1]
            assert "export RAY_AUTH_MODE=token" in command
            assert command.startswith(". ~/prism.env;")
        assert "~/prism.env" in document["file_mounts"]

    @pytest.mark.parametrize("stem", LAUNCHED)
    def test_workers_offer_the_resource_that_keeps_qas_off_the_head(self, stem):
        document = cluster_file(stem)
        (mounted,) = [v for k, v in document["file_mounts"].items() if k.endswith("serve.yaml")]
        config = prism_config(yaml.safe_load((ROOT / mounted).read_text()))
        (resource,) = config.scheduler.resources
        if stem == "onprem":
            command = document["worker_start_ray_commands"][-1]
            offered = json.loads(re.findall(r"--resources='(.*?)'", command)[0])
            assert resource not in document["head_start_ray_commands"][-1]
        else:
            types = document["available_node_types"]
            offered = types["gpus"]["resources"]
            assert resource not in types[document["head_node_type"]]["resources"]
        assert offered[resource] >= config.scheduler.resources[resource]

    @pytest.mark.parametrize("stem", CLOUDS)
    def test_the_workers_have_the_gpus_that_the_mounted_serve_config_asks_for(self, stem):
        document = cluster_file(stem)
        config = prism_config(
            yaml.safe_load((ROOT / document["file_mounts"]["~/serve.yaml"]).read_text())
        )
        node = document["available_node_types"]["gpus"]
        gpus, cpus = node["resources"]["GPU"], node["resources"]["CPU"]
        fitting = min(gpus // config.replicas.num_gpus, cpus // config.replicas.num_cpus)
        assert node["min_workers"] * fitting == config.replicas.count
        left = node["min_workers"] * cpus - config.replicas.count * config.replicas.num_cpus
        assert left >= config.ingress.count * config.ingress.num_cpus

    def test_on_premise_there_is_a_worker_for_each_replica(self):
        document = cluster_file("onprem")
        config = prism_config(
            yaml.safe_load((ROOT / document["file_mounts"]["~/serve.yaml"]).read_text())
        )
        assert len(document["provider"]["worker_ips"]) == config.replicas.count

    @pytest.mark.parametrize("stem", CLOUDS)
    def test_machine_images_are_pinned(self, stem):
        for node in cluster_file(stem)["available_node_types"].values():
            text = json.dumps(node["node_config"])
            pins = {
                "aws": r'"ImageId": "ami-[0-9a-f]{17}"',
                "gcp": r'images/[a-z0-9-]+-v20\d{6}"',
                "azure": r'"imageVersion": "22\.04\.20\d{8}"',
            }
            assert re.search(pins[stem], text)
            assert "latest" not in text
            assert "/family/" not in text

    @pytest.mark.parametrize("stem", CLOUDS)
    def test_containers_run_the_image_of_the_dockerfile(self, stem):
        (kube,) = {
            container["image"]
            for group in kube_groups()
            for container in group["template"]["spec"]["containers"]
        }
        assert cluster_file(stem)["docker"]["image"] == kube
        assert kube.endswith(f"/prism-ray:{version('prism-ray')}")

    def test_haproxy_mode_is_on_wherever_ray_starts(self):
        switches = ("RAY_SERVE_ENABLE_HA_PROXY=1", "RAY_SERVE_THROUGHPUT_OPTIMIZED=1")
        onprem = cluster_file("onprem")
        texts = [
            onprem["head_start_ray_commands"][-1],
            onprem["worker_start_ray_commands"][-1],
            (CLUSTER / "Dockerfile").read_text(),
        ]
        for text in texts:
            assert all(switch in text for switch in switches)


def kube_groups() -> list[dict[str, Any]]:
    cluster = rayservice()["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


class TestServeConfigs:
    @pytest.mark.parametrize("path", SERVED, ids=name)
    def test_serves_own_schema_holds(self, path):
        ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))

    def test_the_one_machine_configs_stay_on_loopback(self):
        for stem in ("serve", "serve-simulated"):
            config = yaml.safe_load((CONFIGS / f"{stem}.yaml").read_text())
            assert config["http_options"]["host"] == "127.0.0.1"

    def test_a_tensor_parallel_replica_gets_a_gpu_for_each_rank(self):
        config = prism_config(yaml.safe_load((CONFIGS / "serve-tp2.yaml").read_text()))
        assert config.engine.args["tp_size"] == config.replicas.num_gpus == 2


class TestKubeRay:
    def test_the_serve_config_inside_is_the_four_replica_config_with_a_store(self):
        inside = yaml.safe_load(rayservice()["spec"]["serveConfigV2"])
        ServeDeploySchema.model_validate(inside)
        outside = yaml.safe_load((CONFIGS / "serve-4-replicas.yaml").read_text())
        config = inside["applications"][0]["args"]["config"]
        redis = config.pop("redis")
        assert inside["applications"] == outside["applications"]
        assert redis == {
            "url": "redis://prism-redis:6379/1",
            "password_env": "PRISM_REDIS_PASSWORD",
        }

    def test_gcs_survives_in_redis_behind_a_secret_and_without_a_shared_namespace(self):
        options = rayservice()["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        service = documents(CLUSTER / "kuberay-redis.yaml")[0]
        port = service["spec"]["ports"][0]["port"]
        assert options["redisAddress"] == f"{service['metadata']['name']}:{port}"
        assert set(options["redisPassword"]["valueFrom"]) == {"secretKeyRef"}
        assert "externalStorageNamespace" not in options

    def test_ray_asks_for_its_token(self):
        assert rayservice()["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}

    def test_all_passwords_come_from_the_same_secret(self):
        text = json.dumps([rayservice(), *documents(CLUSTER / "kuberay-redis.yaml")])
        pairs = re.findall(r'"secretKeyRef": \{"name": "prism-redis", "key": "(\w+)"\}', text)
        assert pairs == ["password"] * 3

    def test_workers_have_the_gpus_the_memory_and_the_qas_resource(self):
        (workers,) = rayservice()["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        (container,) = workers["template"]["spec"]["containers"]
        config = prism_config(yaml.safe_load(rayservice()["spec"]["serveConfigV2"]))
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
        assert workers["replicas"] * gpus == config.replicas.count * config.replicas.num_gpus
        offered = json.loads(json.loads(workers["rayStartParams"]["resources"]))
        assert offered.keys() == config.scheduler.resources.keys()

    def test_the_store_may_be_reached_by_ray_pods_only_and_all_of_them_carry_that_label(self):
        policies = [d for d in documents(CLUSTER / "kuberay-redis.yaml") if "Policy" in d["kind"]]
        (rule,) = policies[0]["spec"]["ingress"]
        (peer,) = rule["from"]
        for group in kube_groups():
            labels = group["template"]["metadata"]["labels"]
            assert peer["podSelector"]["matchLabels"].items() <= labels.items()

    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
    def test_kustomize_puts_the_settings_of_redis_conf_into_the_stateful_set(self):
        built = subprocess.run(
            ["kubectl", "kustomize", str(CLUSTER)], capture_output=True, text=True, check=True
        )
        objects = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(built.stdout)}
        (settings,) = [d for (kind, _), d in objects.items() if kind == "ConfigMap"]
        assert settings["data"]["redis.conf"] == (CLUSTER / "redis.conf").read_text()
        pod = objects["StatefulSet", "prism-redis"]["spec"]["template"]["spec"]
        assert pod["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]
        assert all(d["metadata"]["namespace"] == "prism" for d in objects.values())


class TestRedis:
    def settings(self) -> dict[str, str]:
        lines = (CLUSTER / "redis.conf").read_text().splitlines()
        pairs = [line.split(" ", 1) for line in lines if line and not line.startswith("#")]
        return dict(pairs)

    def test_gcs_is_durable_and_never_evicted(self):
        settings = self.settings()
        assert settings["appendonly"] == "yes"
        assert settings["maxmemory-policy"].startswith(("volatile-", "noeviction"))
        assert "maxmemory" in settings

    def test_telemetry_has_the_second_database_everywhere(self):
        assert self.settings()["databases"] == "2"
        compose = yaml.safe_load((CONFIGS / "serve-compose.yaml").read_text())
        inside = yaml.safe_load(rayservice()["spec"]["serveConfigV2"])
        for serve in (compose, inside):
            url = prism_config(serve).redis.url
            assert url is not None
            assert url.endswith("/1")


class TestCompose:
    def services(self) -> dict[str, Any]:
        return cluster_file("compose")["services"]

    def test_ports_are_published_on_loopback_only_and_the_dashboard_not_at_all(self):
        published = [p for service in self.services().values() for p in service.get("ports", ())]
        assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published)
        assert {int(port.split(":")[1]) for port in published} == {8000, 9090, 3000}
        assert "--dashboard-host=127.0.0.1" in self.services()["head"]["command"][-1]

    def test_files_that_it_mounts_exist(self):
        for service in self.services().values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source.startswith("."):
                    assert (CLUSTER / source).is_file()

    def test_the_password_is_a_secret_of_every_service_that_needs_it(self):
        for name in ("redis", "head", "worker"):
            service = self.services()[name]
            assert "redis-password" in service["secrets"]
            assert "/run/secrets/redis-password" in service["command"][-1]

    def test_secrets_are_files_that_git_ignores(self):
        ignored = (ROOT / ".gitignore").read_text().splitlines()
        for secret in cluster_file("compose")["secrets"].values():
            assert "/cluster/" + secret["file"].removeprefix("./") in ignored

    def test_ray_asks_for_its_token(self):
        for name in ("head", "worker"):
            service = self.services()[name]
            assert service["environment"]["RAY_AUTH_MODE"] == "token"
            secret = Path(service["environment"]["RAY_AUTH_TOKEN_PATH"]).name
            assert secret in service["secrets"]

    def test_the_worker_offers_what_the_scheduler_asks_for(self):
        config = prism_config(yaml.safe_load((CONFIGS / "serve-compose.yaml").read_text()))
        worker = self.services()["worker"]["command"][-1]
        offered = json.loads(re.findall(r"--resources='(.*?)'", worker)[0])
        assert offered.keys() == config.scheduler.resources.keys()

    def test_commands_are_shell_that_parses(self):
        for name in ("redis", "head", "worker"):
            script = self.services()[name]["command"][-1].replace("$$", "$")
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)


class TestMonitoring:
    def services(self) -> dict[str, Any]:
        return cluster_file("compose")["services"]

    def test_it_starts_only_when_asked_for_and_keeps_a_bounded_past(self):
        for name in ("prometheus", "grafana"):
            assert self.services()[name]["profiles"] == ["monitoring"]
        flags = " ".join(self.services()["prometheus"]["command"])
        assert "--storage.tsdb.retention.time=" in flags
        assert "--storage.tsdb.retention.size=" in flags

    def test_prometheus_asks_the_application_and_every_ray_node_where_they_listen(self):
        (config,) = documents(CLUSTER / "prometheus" / "prometheus.yaml")
        jobs = {job["job_name"]: job for job in config["scrape_configs"]}
        assert jobs["prism"]["static_configs"] == [{"targets": ["head:8000"]}]
        (found,) = jobs["ray"]["dns_sd_configs"]
        for node in found["names"]:
            command = self.services()[node]["command"][-1]
            assert f"--metrics-export-port={found['port']}" in command

    def test_on_one_machine_only_the_loopback_is_asked(self):
        (config,) = documents(CLUSTER / "prometheus" / "one-machine.yaml")
        (app, _) = config["scrape_configs"]
        assert app["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]

    def test_grafana_gets_its_data_from_that_prometheus_and_nobody_can_sign_in(self):
        (sources,) = documents(CLUSTER / "grafana" / "datasources.yaml")
        (source,) = sources["datasources"]
        assert source["url"] == "http://prometheus:9090"
        dashboard = json.loads((CLUSTER / "grafana" / "prism.json").read_text())
        asked = {
            target["datasource"]["uid"]
            for panel in dashboard["panels"]
            for target in panel.get("targets", ())
        }
        assert asked == {source["uid"]}
        settings = self.services()["grafana"]["environment"]
        assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
        assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"

    def test_dashboards_are_mounted_where_the_provider_looks(self):
        (provisioning,) = documents(CLUSTER / "grafana" / "dashboards.yaml")
        (provider,) = provisioning["providers"]
        mounted = [v.split(":")[1] for v in self.services()["grafana"]["volumes"]]
        assert f"{provider['options']['path']}/prism.json" in mounted


class TestDockerfile:
    def test_versions_are_those_of_the_project(self):
        text = (CLUSTER / "Dockerfile").read_text()
        project = (ROOT / "pyproject.toml").read_text()
        (sglang,) = re.findall(r'"sglang==([\d.]+)"', project)
        assert f"FROM lmsysorg/sglang:v{sglang}\n" in text
        assert f"ray[default,serve]=={version('ray')}" in text

    def test_what_it_copies_exists(self):
        for line in re.findall(r"^COPY (.*)$", (CLUSTER / "Dockerfile").read_text(), re.M):
            *sources, _ = line.split()
            assert all((ROOT / source).exists() for source in sources)

    def test_only_what_it_copies_travels_to_the_builder(self):
        lines = (ROOT / ".dockerignore").read_text().splitlines()
        taken = {line.removeprefix("!") for line in lines if line.startswith("!")}
        text = (CLUSTER / "Dockerfile").read_text()
        copied = {s for line in re.findall(r"^COPY (.*)$", text, re.M) for s in line.split()[:-1]}
        assert lines[1] == "*"
        assert taken == copied
