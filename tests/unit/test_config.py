"""PrismConfig: what is refused and with which words, what presets say, what is derived."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.config import ConfigError, PrismConfig, default_preset, presets, resolve
from prism_ray.engine_args import server_args

PRESETS = ("a800-llama2-13b", "a800-qwen3-4b", "cpu-smollm2", "simulated")
SIMULATED = {"extends": "simulated"}


def problems(data: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        PrismConfig.load(data)  # type: ignore[arg-type]
    return {p.path: str(p) for p in caught.value.problems}


class TestRefusals:
    def test_every_unknown_key_is_named_with_its_path_and_the_nearest_known_one(self):
        found = problems({**SIMULATED, "replicas": {"cuont": 2}, "limits": {"retires": 1}, "x": 0})
        assert set(found) == {"replicas.cuont", "limits.retires", "x"}
        assert "did you mean 'count'?" in found["replicas.cuont"]
        assert "found 2" in found["replicas.cuont"]

    def test_a_number_in_quotes_is_refused_and_not_converted(self):
        assert "found '2'" in problems({**SIMULATED, "replicas": {"count": "2"}})["replicas.count"]

    def test_a_flag_is_not_a_number(self):
        assert "replicas.count" in problems({**SIMULATED, "replicas": {"count": True}})

    def test_a_missing_section_is_named(self):
        assert "required" in problems({})["model"]

    def test_several_replicas_need_a_placement(self):
        assert "placement.policy" in problems({**SIMULATED, "replicas": {"count": 2}})
        both = {**SIMULATED, "replicas": {"count": 2}, "placement": {"policy": "least-loaded"}}
        assert PrismConfig.load(both).replicas.count == 2

    def test_autoscaling_that_could_not_work_is_refused(self):
        def found(count: int = 1, **scaling: object) -> list[str]:
            replicas = {"count": count, "autoscaling": {"max_count": 4, **scaling}}
            placement = {"policy": "e2"}
            return list(problems({**SIMULATED, "replicas": replicas, "placement": placement}))

        scaling = "replicas.autoscaling"
        assert found(count=5) == [f"{scaling}.max_count"]
        assert found(work_low_s=2.0) == [f"{scaling}.work_low_s"]
        assert found(busy_high=0.5) == [f"{scaling}.busy_low"]
        assert found(busy_high=1.1) == [f"{scaling}.busy_high"]
        assert found(max_coutn=4) == [f"{scaling}.max_coutn"]
        single = {**SIMULATED, "replicas": {"autoscaling": {"max_count": 4}}}
        assert list(problems(single)) == ["placement.policy"]

    def test_a_gpu_is_neither_missing_on_cuda_nor_wasted_on_cpu(self):
        cuda = {"model": {"name": "m", "path": "p"}, "engine": {"device": "cuda"}}
        assert "replicas.num_gpus" in problems(cuda)
        assert "replicas.num_gpus" in problems({**SIMULATED, "replicas": {"num_gpus": 1}})

    @pytest.mark.parametrize("name", ["schedule_policy", "model_path", "radix_cache_backend"])
    def test_engine_arguments_that_follow_from_other_settings_are_refused(self, name):
        data = {"extends": "cpu-smollm2", "engine": {"args": {name: "x"}}}
        assert list(problems(data)) == [f"engine.args.{name}"]

    def test_contradictions_are_listed_together(self):
        data = {
            **SIMULATED,
            "replicas": {"count": 3},
            "limits": {"max_tokens": 10, "body_bytes": 1000, "queue_bytes": 999},
        }
        assert set(problems(data)) == {
            "placement.policy",
            "limits.default_max_tokens",
            "limits.body_bytes",
        }

    def test_direct_dispatch_must_set_in_before_a_stream_opens_with_comments(self):
        assert "limits.qas_timeout_s" in problems({**SIMULATED, "limits": {"qas_timeout_s": 5.0}})

    def test_the_real_engine_needs_a_model_and_its_own_tokenizer(self):
        assert "model.path" in problems({"model": {"name": "m"}})
        assert "model.tokenizer" in problems(
            {"model": {"name": "m", "path": "p", "tokenizer": "builtin"}}
        )

    def test_redis_urls_of_other_kinds_are_refused(self):
        assert "redis.url" in problems({**SIMULATED, "redis": {"url": "http://somewhere"}})

    def test_an_unknown_name_lists_the_presets(self):
        message = problems("no-such-preset")["config"]
        assert all(name in message for name in PRESETS)

    def test_an_error_survives_the_way_between_processes(self):
        with pytest.raises(ConfigError) as caught:
            PrismConfig.load({})
        assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems

    def test_long_values_are_cut_in_messages(self):
        assert len(problems({**SIMULATED, "redis": {"url": "x" * 10_000}})["redis.url"]) < 300


class TestLoading:
    def test_the_presets_are_these(self):
        assert tuple(presets()) == PRESETS

    @pytest.mark.parametrize("name", PRESETS)
    def test_a_preset_survives_json(self, name):
        config = PrismConfig.load(name)
        assert PrismConfig.from_json(config.to_json()) == config
        assert PrismConfig.load(json.loads(config.to_json())) == config

    def test_a_file_and_a_mapping_say_the_same(self, tmp_path: Path):
        data = {"model": {"name": "m", "path": "p"}, "replicas": {"max_running": 7}}
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(data))
        assert PrismConfig.load(str(file)) == PrismConfig.load(data)
        assert resolve(file) == file

    def test_a_broken_file_is_one_error(self, tmp_path: Path):
        file = tmp_path / "broken.yaml"
        file.write_text("model: [")
        assert "readable YAML" in problems(str(file))[str(file)]
        file.write_text("- a list")
        assert "mapping" in problems(str(file))[str(file)]

    def test_extending_keeps_what_is_not_said(self):
        config = PrismConfig.load(
            {"extends": "a800-qwen3-4b", "scheduler": {"params": {"q_cold": 0}}}
        )
        base = PrismConfig.load("a800-qwen3-4b")
        assert config.scheduler.params == {**base.scheduler.params, "q_cold": 0}
        assert config.engine == base.engine

    def test_another_policy_does_not_inherit_parameters(self):
        config = PrismConfig.load({"extends": "a800-qwen3-4b", "scheduler": {"policy": "fcfs"}})
        assert config.scheduler.params == {}

    def test_what_is_not_the_papers_setting_runs_our_own_policy(self):
        for source in ("simulated", "cpu-smollm2", {"model": {"name": "m", "path": "p"}}):
            config = PrismConfig.load(source)
            assert (config.scheduler.policy, config.retention.policy) == ("prism", "planned")

    @pytest.mark.parametrize(
        ("policy", "retention"), [("qas", "dart"), ("prism", "planned"), ("fcfs", "lru")]
    )
    @pytest.mark.parametrize("base", PRESETS)
    def test_retention_goes_with_the_policy_unless_it_is_given(self, base, policy, retention):
        scheduler = {"policy": policy}
        config = PrismConfig.load({"extends": base, "scheduler": scheduler})
        assert config.retention.policy == retention
        given = {"extends": base, "scheduler": scheduler, "retention": {"policy": "slru"}}
        assert PrismConfig.load(given).retention.policy == "slru"

    def test_only_presets_can_be_extended(self):
        assert "extends" in problems({"extends": "/etc/passwd"})

    def test_a_config_cannot_be_changed(self):
        with pytest.raises(Exception, match="frozen"):
            PrismConfig.load("simulated").replicas.count = 2

    @given(gpus=st.floats(0, 1024))
    def test_the_default_is_the_papers_setting_exactly_where_there_is_a_gpu(self, gpus):
        assert default_preset(gpus) == ("a800-qwen3-4b" if gpus >= 1 else "cpu-smollm2")

    def test_a_model_that_was_not_fetched_names_the_command(self, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("PRISM_MODELS_DIR", str(tmp_path))
        model = PrismConfig.load("cpu-smollm2").model
        directory = tmp_path / "SmolLM2-135M-Instruct"
        directory.mkdir()  # half a model is none
        with pytest.raises(ConfigError, match="prism-ray fetch-model smollm2"):
            model.resolved_path()
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (directory / name).touch()
        assert model.resolved_path() == model.resolved_tokenizer() == str(directory)


class TestPaperParameters:
    @pytest.mark.parametrize("name", ["a800-qwen3-4b", "a800-llama2-13b"])
    def test_the_papers_numbers_are_written_out(self, name):
        config = PrismConfig.load(name)
        paper = {
            "f_front": 3,
            "kappa": 1,
            "alpha_size": 1.0,
            "beta_util": 0.5,
            "q_cold": 2,
            "w_active": 1e6,
            "w_next": 1e5,
            "w_global": 1.0,
        }
        assert paper.items() <= config.scheduler.params.items()
        assert (config.replicas.count, config.replicas.num_gpus) == (1, 1)
        assert config.scheduler.round_interval_s == 0.020
        assert (config.scheduler.policy, config.retention.policy) == ("qas", "dart")


class TestDerived:
    @pytest.mark.parametrize(
        ("args", "ahead"),
        [
            ({"chunked_prefill_size": 512}, 1024),
            ({"chunked_prefill_size": -1, "max_prefill_tokens": 3000}, 6000),
            ({"chunked_prefill_size": -1}, 2 * 16_384),
        ],
    )
    def test_the_credit_ceiling_is_two_chunks_or_two_prefills(self, args, ahead):
        data = {"model": {"name": "m", "path": "p"}, "engine": {"args": args}}
        assert PrismConfig.load(data).prefill_ahead_bound_tokens == ahead

    def test_the_simulated_engines_chunk_counts_in_its_place(self):
        data = {**SIMULATED, "engine": {"simulated": {"chunked_prefill_tokens": 50_000}}}
        assert PrismConfig.load(data).prefill_ahead_bound_tokens == 100_000

    def test_a_given_ceiling_wins(self):
        data = {**SIMULATED, "replicas": {"prefill_ahead_tokens": 77}}
        assert PrismConfig.load(data).prefill_ahead_bound_tokens == 77

    @given(
        running=st.integers(1, 512),
        ahead=st.integers(1, 20_000),
        queue=st.integers(1, 100_000),
        count=st.integers(1, 8),
    )
    def test_serve_never_queues_before_we_do(self, running, ahead, queue, count):
        config = PrismConfig.load(
            {
                **SIMULATED,
                "replicas": {
                    "count": count,
                    "max_running": running,
                    "prefill_ahead_tokens": ahead,
                },
                "limits": {"queue_requests": queue},
                "placement": {"policy": "least-loaded"},
            }
        )
        # running, and one uncached token each for those that wait, the last overdrawing
        most_sent = running + ahead + 1
        assert config.replica_max_ongoing_requests > most_sent
        assert config.ingress_max_ongoing_requests > queue + count * most_sent

    def test_auto_follows_the_share_of_a_gpu(self):
        model = {"name": "m", "path": "p"}
        assert PrismConfig.load({"model": model}).device == "cpu"
        assert PrismConfig.load({"model": model, "replicas": {"num_gpus": 0.5}}).device == "cuda"


class TestEngineArgs:
    def test_what_the_file_says_wins_over_our_defaults(self):
        data = {
            "extends": "cpu-smollm2",
            "engine": {"args": {"attention_backend": "torch_native", "page_size": 16}},
        }
        args = server_args(PrismConfig.load(data), "dir", "tok")
        assert (args["attention_backend"], args["page_size"]) == ("torch_native", 16)
        assert (args["device"], args["sampling_backend"]) == ("cpu", "pytorch")

    def test_a_gpu_gets_none_of_the_cpus_arguments(self):
        args = server_args(PrismConfig.load("a800-qwen3-4b"), "dir", "tok")
        assert args["device"] == "cuda"
        assert "attention_backend" not in args
        assert args["schedule_policy"] == "fcfs"
        assert args["max_running_requests"] == 128


class TestDeployment:
    """Settings that only matter where there is more than one machine."""

    def test_one_engine_over_several_gpus_needs_a_replica_with_as_many(self):
        split = {"extends": "a800-llama2-13b", "engine": {"args": {"tp_size": 2}}}
        assert "2" in problems(split)["replicas.num_gpus"]
        assert PrismConfig.load({**split, "replicas": {"num_gpus": 2}}).replicas.num_gpus == 2
        both = {"tp_size": 2, "pp_size": 2}
        four = {"extends": "a800-llama2-13b", "engine": {"args": both}, "replicas": {"num_gpus": 2}}
        assert "4" in problems(four)["replicas.num_gpus"]

    def test_a_password_comes_from_the_environment_and_is_quoted(self):
        redis = {"url": "rediss://prism@store:6380/1", "password_env": "STORE_PASSWORD"}
        config = PrismConfig.load({**SIMULATED, "redis": redis}).redis
        assert "secret" not in config.model_dump_json()
        url = config.authenticated_url({"STORE_PASSWORD": "a/b@secret"})
        assert url == "rediss://prism:a%2Fb%40secret@store:6380/1"

    def test_a_missing_password_is_an_error_that_names_its_variable(self):
        redis = {"url": "redis://store:6379/1", "password_env": "STORE_PASSWORD"}
        config = PrismConfig.load({**SIMULATED, "redis": redis}).redis
        with pytest.raises(ConfigError, match="STORE_PASSWORD"):
            config.authenticated_url({"STORE_PASSWORD": ""})

    def test_without_a_password_variable_the_url_is_as_it_was_written(self):
        config = PrismConfig.load({**SIMULATED, "redis": {"url": "redis://:x@store/1"}}).redis
        assert config.authenticated_url({}) == "redis://:x@store/1"

    def test_a_password_variable_without_a_url_is_refused(self):
        redis = {"password_env": "STORE_PASSWORD"}
        assert "redis.password_env" in problems({**SIMULATED, "redis": redis})


@pytest.mark.parametrize(("name", "value"), [("dp_size", 2), ("enable_cache_report", False)])
def test_engine_arguments_that_the_adapter_is_built_on_are_fixed(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.args\.{name}"):
        PrismConfig.load({"extends": "a800-qwen3-4b", "engine": {"args": {name: value}}})
