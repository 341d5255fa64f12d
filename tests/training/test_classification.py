"""Classifiers of runs and of pretrained networks: top-k against slow counts, folded whitening, class names."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st

from hgld import open_dataset
from hgld.data.batch import normalize
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, SchemaError
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent
from hgld.samplers import EpochSampler
from hgld.training.checkpoint import Checkpoint, find_checkpoint, read_checkpoint, write_checkpoint
from hgld.training.config import LossConfig, ModelConfig
from hgld.training.evaluation import RetrievalTask, SplitEmbedder, evaluate_task
from hgld.training.inference.classification import (
    CLASSES,
    Classifier,
    WhitenedHead,
    classifier_of,
    library_head,
    read_classifier,
    targets_of,
)
from hgld.training.inference.embedder import trained_embedder
from hgld.training.loop import train
from hgld.training.models.backbones import build_model
from hgld.training.models.networks import Network
from tests.fake_releases import imagenet
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset
from tests.rows import each_row, refused
from tests.training.small_runs import options

VIEWS = {
    "loss": "MultiGrain",
    "sampler": "repeated-augmentation",
    "repeats": 2,
    "lambda_": 0.5,
    "lr_beta": 0.1,
    "images_per_class": 4,
}
RUN = options(**VIEWS, epochs=1, metrics=("top-1", "R@1", "top-3"), monitor="top-1", evaluate_on=("test",))


@pytest.fixture(scope="module")
def places(module_path):
    """A dataset whose class 0 occurs only in test, a dataset with new classes, and a run on the first dataset."""
    rng = np.random.default_rng(0)
    known = [Item((c, c // 2), split, jpeg(rng)) for split in ("train", "test") for c in range(1, 7) for _ in range(3)]
    write_dataset(module_path / "data", [*known, Item((0, 0), "test", jpeg(rng))])
    write_dataset(module_path / "new", [Item((c, 0), "test", jpeg(rng)) for c in (0, 7, 7)])
    summary = train(RUN, str(module_path / "data"), module_path / "run")
    return module_path, summary.values["test"]


@each_row("metrics", [("top-3", "top-1"), ("top-1", "R@1", "top-3")])
def test_evaluate_reports_top_k_alone_or_beside_retrieval_metrics(places, metrics):
    folder, values = places
    with trained_embedder(folder / "run", which="last", device="cpu") as embedder:
        task = RetrievalTask(str(folder / "data"), "test")
        report = evaluate_task(SplitEmbedder(embedder), task, options=EvaluationOptions(metrics=metrics))
        ranked = evaluate_task(SplitEmbedder(embedder), task, options=EvaluationOptions(metrics=("R@1",)))
    assert report is not None
    assert ranked is not None
    assert report.values == {name: pytest.approx(values[name]) for name in report.values}
    assert values["top-1"] < values["top-3"]
    assert list(report.per_query.columns) == ["query", *report.values]
    assert report.undefined["top-1"] == 1  # the item of class 0 has no classifier row
    assert report.settings["classifier"] == {"level": "fine", "classes": 6}
    if "R@1" in metrics:
        assert report.per_query["R@1/fine"].equals(ranked.per_query["R@1/fine"])
        assert report.settings["protocol"] == "leave-one-out"
    else:
        assert report.settings["protocol"] == "classification"
        assert list(report.values) == ["top-1", "top-3"]


@pytest.mark.usefixtures("mat_files_here")
def test_imagenet_protocol_reports_hand_computed_top_k(tmp_path, output):
    """The biases rank the last synset first and the one before it second; each has two of the six images."""
    imagenet.make(tmp_path)
    build_shards("imagenet", tmp_path, str(tmp_path / "data"), SourceConfig(), ShardConfig(workers=1), silent)
    fields = {"loss": "MultiGrain", "lambda_": 1.0, "sampler": "shuffled", "images_per_class": 4, "epochs": 0}
    train(options(**fields, evaluate_on=()), str(tmp_path / "data"), tmp_path / "run")
    before = read_checkpoint(find_checkpoint(tmp_path / "run"))
    zeros = {"loss.classifier.weight": torch.zeros(3, 8), "loss.classifier.bias": torch.arange(3.0)}
    tensors = {**before.tensors, "criterion": {**before.tensors["criterion"], **zeros}}
    write_checkpoint(tmp_path / "run", Checkpoint(before.step, tensors, {"best_of": []}))
    given = ("--checkpoint", tmp_path / "run", "--data", tmp_path / "data", "--device", "cpu", "--json")
    values = []
    for more in ([], ["--protocol", "classification", "--metrics", "top-2"]):
        out = output("evaluate", *given, *more)
        values.append(json.loads(out)["values"])
    assert values == [{"top-1": pytest.approx(2 / 6), "top-5": 1.0}, {"top-2": pytest.approx(4 / 6)}]


def test_classifier_targets_match_classes_by_name(places):
    folder, _ = places
    classifier = read_classifier(find_checkpoint(folder / "run", "last"), RUN)
    assert classifier is not None
    dataset = open_dataset(folder / "new", "test")  # of classes 0, 7 and 7
    names = ("7", *classifier.names)
    expected = [{0: -1, 7: 0}[label] for label in dataset.labels[:, 0].tolist()]
    assert targets_of(dataset, "fine", names).tolist() == expected
    with pytest.raises(ConfigError, match="'genus'"):
        targets_of(dataset, "genus", names)


def test_invalid_classification_setups_fail_before_training(places, tmp_path, monkeypatch):
    folder, _ = places
    top_1 = {"metrics": ("top-1",), "monitor": "top-1"}
    for fields, error, message in (
        ({**VIEWS, "evaluate_on": (f"{folder / 'new'}:test",)}, InputError, "no item belongs to one of the 6 classes"),
        ({"loss": "SupAP"}, ConfigError, "loss SupAP has no classifier"),
        (
            {"loss": "NormSoftmax", "level": "genus"},
            ConfigError,
            "--level 'genus' is unknown; the dataset's",
        ),
    ):
        with pytest.raises(error, match=message):
            train(options(**top_1, **fields), str(folder / "data"), tmp_path)
    assert not list(tmp_path.iterdir())
    task, asked = RetrievalTask(str(folder / "data"), "test"), EvaluationOptions(metrics=("top-1",))
    twice = trained_embedder(folder / "run", device="cpu", scales=(1.0, 0.5))
    with twice as embedder, pytest.raises(ConfigError, match="expected one scale"):
        evaluate_task(SplitEmbedder(embedder), task, options=asked)
    with trained_embedder(folder / "run", device="cpu") as embedder:
        monkeypatch.setattr(type(embedder), "embed_dataset", pytest.fail)
        with pytest.raises(InputError, match="no item belongs to one"):
            evaluate_task(SplitEmbedder(embedder), RetrievalTask(str(folder / "new"), "test"), options=asked)
        with pytest.raises(ConfigError, match="whitening: these affect only a ranking"):
            evaluate_task(SplitEmbedder(embedder), task, options=asked, whitening=folder / "w.safetensors")
        with pytest.raises(ConfigError, match="there is no classifier"):
            evaluate_task(SplitEmbedder(replace(embedder, classifier=None)), task, options=asked)


def test_invalid_class_names_file_is_refused(places, tmp_path):
    folder, _ = places
    checkpoint = find_checkpoint(folder / "run", "last")
    for number, (text, error, message) in enumerate(
        [
            ('{"schema_version": 2}', SchemaError, "reads version 1"),
            ('{"schema_version": 1, "level": "fine", "names": ["a", "a"]}', InputError, "different names"),
            ('{"schema_version": 1, "level": "fine", "names": ["a", "b"]}', InputError, "expected 2 classes"),
        ]
    ):
        run = tmp_path / str(number)
        (run / "checkpoints").mkdir(parents=True)
        (run / "checkpoints" / checkpoint.name).symlink_to(checkpoint)
        (run / CLASSES).write_text(text)
        with pytest.raises(error, match=message):
            read_classifier(run / "checkpoints" / checkpoint.name, RUN)


@given(st.integers(0, 1 << 30), st.integers(2, 6))
def test_top_k_equals_a_slow_count_in_which_ties_are_misses(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randint(-2, 3, (5, 3), generator=generator).float()
    weight = torch.randint(-2, 3, (classes, 3), generator=generator).float()
    bias = torch.randint(-1, 2, (classes,), generator=generator).float()
    targets = torch.randint(-1, classes, (5,), generator=generator)
    names = tuple(map(str, range(classes)))
    found = Classifier(weight, bias, None, "fine", names).top_k(embeddings, targets, (1, 2))
    for item, target in enumerate(targets.tolist()):
        scores = (weight.double() @ embeddings[item].double() + bias.double()).tolist()
        before = sum(scores[c] >= scores[target] for c in range(classes) if c != target)
        for k in (1, 2):
            assert found[f"top-{k}"][item] == pytest.approx(np.nan if target < 0 else float(before < k), nan_ok=True)


def test_proxy_classifier_logits_equal_loss_logits():
    from hgld.losses import NormSoftmax, ProxyNCApp

    embeddings = torch.randn(4, 3)
    for name, made in (("NormSoftmax", NormSoftmax(5, 3, 0.1)), ("ProxyNCApp", ProxyNCApp(5, 3, 0.1))):
        state = {f"loss.{key}": value for key, value in made.state_dict().items()}
        classifier = classifier_of(LossConfig(loss=name, proxy_temperature=0.1), state, "fine", tuple("abcde"))
        of_loss, of_classifier = made.logits(embeddings).softmax(1), classifier.logits(embeddings).softmax(1)
        torch.testing.assert_close(of_classifier, of_loss)


@each_row("scale", [None, 20.0])
@each_row("power", [0.5, 0.25])
def test_classifier_with_folded_whitening_gives_equal_scores(scale, power):
    generator = torch.Generator().manual_seed(0)
    mixed = torch.rand(24, 24, generator=generator) * torch.linspace(0.05, 1, 24)
    embeddings = 3 * torch.rand(60, 24, generator=generator) @ mixed
    weight, bias = torch.randn(5, 24, generator=generator), torch.randn(5, generator=generator)
    classifier = Classifier(weight, bias * (scale is None), scale, "fine", tuple("abcde"))
    whitening = Whitening.fit(embeddings, fitted_on="mixed", power=power)
    whitened, logits = WhitenedHead(classifier, whitening)(embeddings)
    before = classifier.logits(embeddings)
    assert float((logits - before).abs().max()) < 1e-5 * max(1.0, float(before.abs().max()))
    np.testing.assert_allclose(whitened.numpy(), whitening.apply(embeddings), atol=2e-5)


def test_whitening_to_fewer_dimensions_cannot_be_folded():
    rows = torch.rand(40, 6)
    classifier = Classifier(torch.rand(3, 6), torch.zeros(3), None, "fine", tuple("abc"))
    with pytest.raises(ConfigError, match="keeps 4 components of 6 dimensions"):
        WhitenedHead(classifier, Whitening.fit(rows, fitted_on="few", dimensions=4))


# -- the classifier of a pretrained network --

PLAIN = {"dim": 0, "layer_norm": False, "pooling": "gem", "gem_learned": False}


def network(name, classes=1000):
    torch.manual_seed(0)
    made = torchvision.models.get_model(name, weights=None, num_classes=classes).eval()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.weight) / 10
    return made


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.pt"
    torch.save(network("regnet_y_400mf").state_dict(), path)
    return str(path)


def build(spec, weights, **fields):
    return build_model(ModelConfig(backbone=spec, pretrained=weights, **PLAIN | fields), image_size=48)


def test_library_head_finds_the_timm_classifier(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    whole = timm.create_model("test_resnet", pretrained=False).eval()
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    model = build("timm:test_resnet", str(tmp_path / "w.pt"))
    weight, bias = library_head("timm:test_resnet", str(tmp_path / "w.pt"), model)
    assert torch.equal(weight, whole.get_classifier().weight)
    assert torch.equal(bias, whole.get_classifier().bias)


def head_of(spec, fields, *, weights):
    model = build(spec, "none", **fields)
    library_head(spec, weights, model)


test_library_head_refuses_models_without_pretrained_classifier = refused(
    head_of,
    [
        ("torchvision:regnet_y_400mf", {"dim": 8}, "a projection; use --dim 0"),
        ("torchvision:regnet_y_400mf", {"layer_norm": True}, "a layer norm; use --no-layer-norm"),
        ("small", {}, "expected weights of torchvision or timm"),
    ],
    ConfigError,
)


@pytest.mark.slow
def test_library_head_refuses_a_classifier_that_is_not_one_linear_layer(tmp_path, weights):
    torch.save(network("squeezenet1_1").state_dict(), tmp_path / "s.pt")
    model = build("torchvision:squeezenet1_1", "none")
    with pytest.raises(ConfigError, match="not one linear layer"):
        library_head("torchvision:squeezenet1_1", str(tmp_path / "s.pt"), model)
    with pytest.raises(ConfigError, match="not one linear layer"):  # the model has random weights, not the file's
        library_head("torchvision:regnet_y_400mf", weights, build("torchvision:regnet_y_400mf", "none"))
    with pytest.raises(InputError, match="not the weights of this backbone"):
        library_head("torchvision:resnet34", weights, model)


@pytest.mark.slow
def test_pretrained_classifier_starts_a_run_and_is_evaluated_without_one(tmp_path, monkeypatch):
    """The network gets a classifier of three synsets instead of a thousand."""
    whole = network("regnet_y_400mf", classes=3)
    make = torchvision.models.get_model
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **given: make(name, **given | {"num_classes": 3}))
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    rng = np.random.default_rng(0)
    items = [Item((c, 0), split, jpeg(rng)) for split in ("train", "val") for c in (2, 0, 1) for _ in "ab"]
    write_dataset(tmp_path / "data", items)
    fields = {**PLAIN, "backbone": "torchvision:regnet_y_400mf", "pretrained": str(tmp_path / "w.pt"), "gem_p": 1.0}
    fields |= {"loss": "MultiGrain", "lambda_": 1.0, "sampler": "shuffled", "images_per_class": 4, "batch_size": 4}
    config = options(**fields, classifier="pretrained", epochs=0, evaluate_on=(), size=32, resize=32)
    with pytest.raises(ConfigError, match="'fine' has 3 classes, the first is '0'; expected the 3 sorted WordNet ids"):
        train(config, str(tmp_path / "data"), tmp_path / "run")
    monkeypatch.setattr("hgld.training.inference.classification._SYNSET", re.compile("[0-9]"))
    train(config, str(tmp_path / "data"), tmp_path / "run")
    classifier = read_classifier(find_checkpoint(tmp_path / "run"), config)
    assert classifier is not None
    torch.testing.assert_close(classifier.weight, whole.get_parameter("fc.weight").detach())
    torch.testing.assert_close(classifier.bias, whole.get_parameter("fc.bias").detach())
    source = Network("torchvision:regnet_y_400mf", str(tmp_path / "w.pt"), "gem")
    task, asked = RetrievalTask(str(tmp_path / "data"), "val"), EvaluationOptions(metrics=("top-1", "top-2"))
    given = {"device": "cpu", "data": task.place, "size": 48}
    with trained_embedder(source, gem_p=1.0, resize_mode="squash", **given) as embedder:
        report = evaluate_task(SplitEmbedder(embedder), task, options=asked)
    (batch,) = Loader(
        open_dataset(tmp_path / "data", "val"), EpochSampler(6, 6, shuffle=False), TestView(48, 48, "squash")
    )
    with torch.no_grad():
        scores = whole(normalize(batch.images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), torch.device("cpu")))
    hits = (-scores).argsort(dim=1) == batch.labels[:, :1]
    assert report is not None
    assert report.values == pytest.approx({f"top-{k}": float(hits[:, :k].any(1).double().mean()) for k in (1, 2)})
