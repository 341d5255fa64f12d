"""Datasets and runs are pushed to a Hub; every file is sent only once and read back unchanged."""

import huggingface_hub
import pytest
import torch
import yaml

from hgld import load_model, open_dataset
from hgld.errors import ConfigError, InputError, ServiceError
from hgld.hub import dataset_contents, push, repository
from tests.hgld.hub_server import LARGE, Hub
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import refused
from tests.training.untrained_run import write_run

# the warning comes from inside huggingface_hub
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ADDRESS = "hf:somebody/something"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    # the fake Hub does not support the Xet protocol
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with Hub() as server:
        client = huggingface_hub.HfApi
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda **options: client(endpoint=server.url, **options))
        yield server


@pytest.fixture
def made(tmp_path):
    root = tmp_path / "made"
    write_dataset(root, items_of_classes([3, 4, 2, 5]))
    (root / "notes.txt").write_text("not of the dataset")
    return root


def test_a_stopped_push_resumes_sends_no_file_twice_and_the_dataset_opens(hub, made, monkeypatch):
    monkeypatch.setattr("hgld.hub._FILES_A_COMMIT", 2)
    contents = dataset_contents(made)
    hub.accepted = 1
    with pytest.raises(ServiceError, match="the Hub responded with 422"):
        push(ADDRESS, contents)
    hub.accepted = 99
    push(ADDRESS, contents)
    files = hub.repositories["datasets/somebody/something"]
    assert files == {path: (made / path).read_bytes() for path in contents.files}  # notes.txt is not pushed
    # small files and files for large file storage are both sent
    assert max(map(len, files.values())) >= LARGE > min(map(len, files.values()))
    sent = [call for call in hub.asked if call.startswith("PUT") or "/commit/" in call]
    puts = [call for call in sent if "PUT" in call]
    assert len(set(puts)) == len(puts)
    push(ADDRESS, contents)
    assert [call for call in hub.asked if call.startswith("PUT") or "/commit/" in call] == sent
    here, there = open_dataset(made), open_dataset("hf://somebody/something")
    assert list(there.keys) == list(here.keys)
    assert there.read(0) == here.read(0)


def test_a_dry_run_lists_the_files_and_sends_nothing(hub, made, json_of):
    said = json_of("push", made, ADDRESS, "--dry-run")
    assert (said["kind"], said["sent"], hub.repositories) == ("dataset", False, {})
    assert {file["path"] for file in said["files"]} >= {"dataset.json", "index.parquet"}


def test_a_run_is_pushed_without_its_optimizer_and_loaded_again(hub, tmp_path, output):
    run = tmp_path / "run"
    write_run(run, averaged=True)
    (run / "evaluations.csv").write_text("step,epoch,split,R@1/fine,H-AP\n1,0,test,0.5,0.25\n2,1,test,0.1,0.1\n")
    assert "4 files, " in output("push", run, ADDRESS)
    files = hub.repositories["models/somebody/something"]
    assert not [path for path in files if "optimizer" in path]
    assert b'hgld.load_model("hf:somebody/something")' in files["README.md"]
    metrics = yaml.safe_load(files["README.md"].decode().split("---")[1])["model-index"][0]["results"][0]["metrics"]
    assert {metric["type"]: metric["value"] for metric in metrics} == {"R@1/fine": 0.5, "H-AP": 0.25}
    here, there = load_model(run).module.state_dict(), load_model(ADDRESS).module.state_dict()
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_truncated_file_is_not_pushed(made):
    next(made.glob("*.tar")).write_bytes(b"")
    with pytest.raises(InputError, match=r"does not have the \d+ bytes that dataset\.json states"):
        dataset_contents(made)


@pytest.mark.parametrize(
    ("status", "headers", "token", "told"),
    [
        (404, {"X_Error_Code": "RepoNotFound"}, True, r"the repository does not exist, or you have no access.*type\.$"),
        (401, {}, False, "the repository does not exist, .* Log in first: hf auth login"),
        (
            401,
            {"X_Error_Message": "Invalid credentials in Authorization header"},
            True,
            "401: .* permissions of your token",
        ),
        (403, {"X_Error_Code": "GatedRepo"}, True, r"it is gated: request access on its page\.$"),
        (404, {"X_Error_Code": "RevisionNotFound"}, True, "404: .* Check the name"),
        (503, {}, True, "503: .* the same command: it resumes"),
    ],
)
def test_hub_errors_include_a_fix(hub, monkeypatch, status, headers, token, told):
    if not token:
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere")
    hub.refusal = (status, headers)
    with pytest.raises(ServiceError, match=f"hf:somebody/something: .*{told}"):
        open_dataset(ADDRESS, "train")


def test_offline_mode_has_its_own_error(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ServiceError, match="HF_HUB_OFFLINE forbids requests to the Hub"):
        open_dataset(ADDRESS, "train")


test_invalid_hub_addresses_are_refused = refused(
    repository, ["hf:name", "hf:a/b/c", "hf:../x", "hf:a/b?x"], ConfigError, "expected hf:USER/NAME"
)
