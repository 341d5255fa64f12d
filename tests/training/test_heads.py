"""The classifier of a pretrained network: its scores with mean pooling, and a run that starts with it."""

import re

import numpy as np
import pytest
import torch
import torchvision

from hgld import open_dataset
from hgld.data.batch import normalize
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import EvaluationOptions
from hgld.samplers import EpochSampler
from hgld.training.checkpoint import find_checkpoint
from hgld.training.config import ModelConfig
from hgld.training.evaluation import RetrievalTask, SplitEmbedder, evaluate_task
from hgld.training.inference.classification import library_head, read_classifier
from hgld.training.inference.embedder import trained_embedder
from hgld.training.loop import train
from hgld.training.models.backbones import build_model
from hgld.training.models.networks import Network
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset
from tests.training.small_runs import options

PLAIN = {"dim": 0, "layer_norm": False, "pooling": "gem", "gem_learned": False}


def network(name: str, classes: int = 1000) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torchvision.models.get_model(name, weights=None, num_classes=classes).eval()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.weight) / 10
    return made


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet18.pt"
    torch.save(network("resnet18").state_dict(), path)
    return str(path)


def build(spec: str, weights: str, **fields):
    return build_model(ModelConfig(backbone=spec, pretrained=weights, **PLAIN | fields), image_size=48)


def test_library_head_on_mean_features_reproduces_network_scores(weights):
    model = build("torchvision:resnet18", weights, gem_p=1.0).eval()
    weight, bias = library_head("torchvision:resnet18", weights, model)
    images = torch.randn(3, 3, 48, 40, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = network("resnet18")(images)
        scores = model(images) @ weight.T + bias
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)


def test_library_head_finds_the_timm_classifier(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    whole = timm.create_model("test_resnet", pretrained=False).eval()
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    model = build("timm:test_resnet", str(tmp_path / "w.pt"))
    weight, bias = library_head("timm:test_resnet", str(tmp_path / "w.pt"), model)
    assert torch.equal(weight, whole.get_classifier().weight)
    assert torch.equal(bias, whole.get_classifier().bias)


@pytest.mark.parametrize(
    ("spec", "fields", "message"),
    [
        ("torchvision:resnet18", {"dim": 8}, "take --dim 0"),
        ("torchvision:resnet18", {"layer_norm": True}, "take --dim 0"),
        ("small", {}, "expected weights of torchvision or timm"),
    ],
)
def test_library_head_rejects_models_without_pretrained_classifier(weights, spec, fields, message):
    model = build(spec, "none", **fields)
    with pytest.raises(ConfigError, match=message):
        library_head(spec, weights, model)


def test_library_head_rejects_classifier_not_reading_the_mean(tmp_path, weights):
    torch.save(network("squeezenet1_1").state_dict(), tmp_path / "s.pt")
    model = build("torchvision:squeezenet1_1", "none")
    with pytest.raises(ConfigError, match="not one linear layer"):
        library_head("torchvision:squeezenet1_1", str(tmp_path / "s.pt"), model)
    with pytest.raises(ConfigError, match="not one linear layer"):  # other weights than the model's
        library_head("torchvision:resnet18", weights, build("torchvision:resnet18", "none"))
    with pytest.raises(InputError, match="not the weights of this backbone"):
        library_head("torchvision:resnet34", weights, model)


def test_run_starts_with_the_pretrained_classifier(tmp_path, monkeypatch):
    """The network gets three classes, for three synsets in place of a thousand."""
    whole = network("resnet18", classes=3)
    make = torchvision.models.get_model
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **given: make(name, **given | {"num_classes": 3}))
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    rng = np.random.default_rng(0)
    write_dataset(tmp_path / "data", [Item((c, 0), "train", jpeg(rng)) for c in (2, 0, 1) for _ in range(4)])
    fields = {**PLAIN, "backbone": "torchvision:resnet18", "pretrained": str(tmp_path / "w.pt"), "gem_p": 1.0}
    fields |= {"loss": "MultiGrain", "lambda_": 1.0, "sampler": "shuffled", "images_per_class": 4}
    config = options(**fields, classifier="pretrained", epochs=0, evaluate_on=(), size=32, resize=32)
    with pytest.raises(ConfigError, match="'fine' 3, the first '0'; expected the 3 WordNet ids"):
        train(config, str(tmp_path / "data"), tmp_path / "run")
    monkeypatch.setattr("hgld.training.inference.classification._SYNSET", re.compile("[0-9]"))
    train(config, str(tmp_path / "data"), tmp_path / "run")
    classifier = read_classifier(find_checkpoint(tmp_path / "run"), config)
    assert classifier is not None
    dataset = open_dataset(tmp_path / "data", "train")
    with trained_embedder(tmp_path / "run", device="cpu") as embedder:
        assert embedder.view == TestView(32, 32)
        scores = classifier.logits(embedder.embed_dataset(dataset, unit=False))
    assert scores.shape == (12, 3)
    torch.testing.assert_close(classifier.weight, whole.get_parameter("fc.weight").detach())
    torch.testing.assert_close(classifier.bias, whole.get_parameter("fc.bias").detach())


def test_pretrained_network_is_classified_without_a_run(tmp_path, monkeypatch):
    """The values are those of the scores of the whole network."""
    whole = network("resnet18", classes=3)
    make = torchvision.models.get_model
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **given: make(name, **given | {"num_classes": 3}))
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    monkeypatch.setattr("hgld.training.inference.classification._SYNSET", re.compile("[0-9]"))
    rng = np.random.default_rng(0)
    items = [Item((c, 0), split, jpeg(rng)) for split in ("train", "val") for c in (2, 0, 1) for _ in "ab"]
    write_dataset(tmp_path / "data", items)
    source = Network("torchvision:resnet18", str(tmp_path / "w.pt"), "gem")
    task, asked = RetrievalTask(str(tmp_path / "data"), "val"), EvaluationOptions(metrics=("top-1", "top-2"))
    dataset, given = open_dataset(tmp_path / "data", "val"), {"device": "cpu", "data": task.place, "size": 48}
    with trained_embedder(source, gem_p=1.0, resize_mode="squash", **given) as embedder:
        report = evaluate_task(SplitEmbedder(embedder), task, options=asked)
    (batch,) = Loader(dataset, EpochSampler(6, 6, shuffle=False), TestView(48, 48, "squash"))
    with torch.no_grad():
        scores = whole(normalize(batch.images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), torch.device("cpu")))
    places = (-scores).argsort(dim=1)
    hits = places == batch.labels[:, :1]
    assert report is not None
    assert report.values == pytest.approx({f"top-{k}": float(hits[:, :k].any(1).double().mean()) for k in (1, 2)})
    dataset = open_dataset(tmp_path / "data", "train")
    with trained_embedder(Network("small"), **given) as embedder, pytest.raises(ConfigError, match="no classifier"):
        embedder.classifier_for(dataset)
