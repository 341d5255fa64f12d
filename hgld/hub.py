"""Pushing and reading of datasets and trained models on the Hugging Face Hub."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hgld.errors import (
    ConfigError,
    InputError,
    MissingResourceError,
    ServiceError,
    excerpt,
    quoted,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

Kind = Literal["dataset", "model"]
_ADDRESS = re.compile(r"hf:(?://)?(?:datasets/)?([\w.-]+/[\w.-]+)")
_FILES_A_COMMIT = 25  # files per commit: a resumed push sends at most this many files again


def is_address(place: object) -> bool:
    """Tell whether an address is on the Hub: ``hf:USER/NAME`` or ``hf://USER/NAME``."""
    return isinstance(place, str) and place.startswith("hf:")


def repository(address: str) -> str:
    """Return ``USER/NAME`` of an address.

    Raises:
        ConfigError: the address is not ``hf:USER/NAME``.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in match[1]:
        raise ConfigError(f"{quoted(address)} is not an address on the Hub; expected hf:USER/NAME.")
    return match[1]


# -- pushing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """Files of a repository, keyed by their paths in it; each is a local file, or bytes."""

    kind: Kind
    files: Mapping[str, Path | bytes]


def dataset_contents(folder: Path) -> Contents:
    """Return the files of a dataset directory to push: all files in its manifest, its card and Croissant metadata.

    Raises:
        InputError: the folder holds no dataset, or a file in the manifest is missing or has another size.
    """
    from hgld.data.format import CROISSANT, MANIFEST
    from hgld.data.storage import ShardStorage, read_manifest

    manifest = read_manifest(ShardStorage(str(folder)))
    sizes = {name: facts["bytes"] for name, facts in manifest.files.items()}
    sizes |= {shard.name: shard.bytes for shard in manifest.shards}
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise InputError(
                f"{file} is missing, or does not have the {size} bytes that {MANIFEST} states; run hgld verify."
            )
    cards = [name for name in ("README.md", CROISSANT) if (folder / name).is_file()]
    return Contents("dataset", {name: folder / name for name in (*cards, MANIFEST, *sizes)})


def push(
    address: str,
    contents: Contents,
    *,
    private: bool = False,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> None:
    """Push files. The Hub's client does not send unchanged files again, so a stopped push resumes.

    The client reads the token that ``hf auth login`` stores (or ``HF_TOKEN``). hgld itself never handles the token.

    Args:
        address: ``hf:USER/NAME``; created if it does not exist.
        contents: files to push.
        private: whether to make a new repository private.
        progress: function called with a task, the number of files done and the total number.

    Raises:
        ServiceError: the Hub does not respond, or denies the request.
    """
    name, files = repository(address), list(contents.files.items())
    with _asking(address) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(name, repo_type=contents.kind, private=private, exist_ok=True)
        for start in range(0, len(files), _FILES_A_COMMIT):
            part = files[start : start + _FILES_A_COMMIT]
            sent = [(path, content if isinstance(content, bytes) else str(content)) for path, content in part]
            operations = [CommitOperationAdd(path, content) for path, content in sent]
            message = f"hgld push: {part[0][0]}" + (f" and {len(part) - 1} more" if len(part) > 1 else "")
            api.create_commit(name, operations, commit_message=message, repo_type=contents.kind)
            progress("push", start + len(part), len(files))


# -- reading ----------------------------------------------------------------------------------------------------------


def fetched(address: str, kind: Kind, patterns: list[str] | None = None) -> Path:
    """Return a folder with files of a repository; fetch missing files into hgld's cache.

    Every revision has its own folder, named after its commit, so files of two revisions never mix.

    Args:
        address: ``hf:USER/NAME``.
        kind: type of the repository.
        patterns: name patterns of the files to fetch; None: all files.

    Raises:
        ServiceError: the Hub does not respond, or the repository does not exist.
    """
    import platformdirs

    name = repository(address)
    with _asking(address) as api:
        commit = api.repo_info(name, repo_type=kind).sha
        if commit is None or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
            raise ServiceError(f"{address}: the Hub returned the revision {quoted(commit)}; expected a commit's hash.")
        folder = Path(platformdirs.user_cache_dir("hgld")) / "hub" / f"{kind}s--{name.replace('/', '--')}" / commit
        api.snapshot_download(
            name, repo_type=kind, revision=commit, local_dir=folder, allow_patterns=patterns, max_workers=4
        )
    return folder


def dataset_folder(address: str, split: str | None) -> Path:
    """Return a local folder with the tables and the shards of a split (None: all splits) of a dataset on the Hub."""
    tables = ["*.json", "*.parquet", "README.md"]
    return fetched(address, "dataset", [*tables, "*.tar" if split is None else f"{split}-*.tar"])


@contextmanager
def _asking(address: str) -> "Iterator[HfApi]":
    """Yield the Hub's client, and turn its errors into hgld's errors."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    # Releases 1 and 2 of the client use different HTTP packages, and a failed upload raises a RuntimeError.
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    lost = (OSError, RuntimeError, *(client.HTTPError for client in clients))
    try:
        yield HfApi(library_name="hgld")
    except LocalTokenNotFoundError as error:
        raise MissingResourceError(
            f"{address}: there is no token on this machine. Log in with: hf auth login"
        ) from error
    except HfHubHTTPError as error:
        raise ServiceError(f"{address}: {_refusal(error)}") from error
    except OfflineModeIsEnabled as error:
        raise ServiceError(
            f"{address}: HF_HUB_OFFLINE forbids requests to the Hub. Unset it, or use a local folder."
        ) from error
    except lost as error:
        raise ServiceError(
            f"{address}: the Hub could not be reached ({_first_line(error)}). The same command resumes."
        ) from error


def _refusal(error: "HfHubHTTPError") -> str:
    """Return the Hub's reason for an error, and a fix; without a token, a private or missing repository gives 401."""
    from huggingface_hub import errors, get_token

    status = getattr(getattr(error, "response", None), "status_code", None)
    log_in = "" if get_token() else " Log in first: hf auth login"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: request access on its page.{log_in}"
    if isinstance(error, errors.RepositoryNotFoundError) or (status == 401 and log_in):
        return f"the repository does not exist, or you have no access to it. Check its name and type.{log_in}"
    is_passing = status is None or status == 429 or status >= 500
    fix = (
        "Wait, then run the same command: it resumes."
        if is_passing
        else "Check the name and the permissions of your token."
    )
    return f"the Hub responded with {status}: {_first_line(error)} {fix}"


def _first_line(error: Exception) -> str:
    return excerpt(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__))


def model_card(name: str, facts: Mapping[str, Any], values: Mapping[str, float], dataset: str) -> str:
    """Return the README of a model: a description, instructions to load it, and its metrics in the Hub's format.

    Args:
        name: ``USER/NAME``.
        facts: facts about the run, shown as a table.
        values: metrics of the model, as fractions.
        dataset: dataset of the evaluation.
    """
    from huggingface_hub import EvalResult, ModelCardData

    task = "image-feature-extraction"
    results = [
        EvalResult(task, dataset, dataset, key, round(value, 6), task_name="Image retrieval", metric_name=key)
        for key, value in values.items()
    ]
    header = ModelCardData(
        library_name="hgld",
        pipeline_tag=task,
        tags=["image-retrieval", "hierarchical-labels"],
        model_name=name.rpartition("/")[2],
        eval_results=results or None,
    )
    rows = "\n".join(f"| {key} | {str(value).replace('|', '/')} |" for key, value in facts.items())
    measured = "\n".join(f"| {key} | {value:.4f} |" for key, value in values.items())
    table = f"\n## Measured on {dataset}\n\n| metric | value |\n|---|---:|\n{measured}\n" if values else ""
    return (
        f"---\n{header}\n---\n\n# {name}\n\nAn embedding for image retrieval, trained with hgld.\n\n"
        f'```python\nimport hgld\n\nmodel = hgld.load_model("hf:{name}")\nembeddings = model.encode(["photo.jpg"])\n'
        f"```\n\n| | |\n|---|---|\n{rows}\n{table}"
    )
