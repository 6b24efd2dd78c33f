"""Real checkpoints of other people, where they are at hand."""

import json

import pytest
import torch

import resprobe

SCALED = ".491373,.482353,.446667/.247059,.243529,.261569"
NORMALISATIONS = {
    "akamaster-resnet20.th": "imagenet",
    "akamaster-resnet56.th": "imagenet",
    "ehanw-resnet20.pth": "imagenet",
    "tomgoldstein-resnet56.t7": SCALED,
    "tomgoldstein-plain56.t7": SCALED,
    "hysts-preact20.pth": "cifar10",
    "abcrown-resnet2b.pth": ".4914,.4822,.4465/.2470,.2435,.2616",
}


@pytest.fixture
def data(real):
    def data(file, **options):
        path = f"npz:{real / 'cifar10-test-1000.npz'}"
        return resprobe.open_data(path, normalisation=NORMALISATIONS[file], batch_size=250, **options)

    return data


@pytest.mark.parametrize(
    ("file", "name", "shortcut", "error"),
    [
        ("akamaster-resnet20.th", "resnet20 or plain20", None, 0.0822),
        ("akamaster-resnet56.th", "resnet56 or plain56", None, 0.0638),
        ("ehanw-resnet20.pth", "resnet20", "projection", None),
        ("tomgoldstein-resnet56.t7", "resnet56", "projection", 0.0634),
        ("tomgoldstein-plain56.t7", "resnet56 or plain56", None, 0.1331),
        ("hysts-preact20.pth", "preresnet20", "projection", 0.4661),
        ("hysts-resnet8-mnist.pth", "resnet8", "projection", 0.0051),
        ("abcrown-resnet2b.pth", "resnet7", "projection", 0.3075),
    ],
)
def test_what_the_file_alone_says(real, file, name, shortcut, error):
    checkpoint = resprobe.load(real / file)
    fact = checkpoint.facts["shortcut"]
    assert checkpoint.name == name
    assert (fact.value, fact.how) == (shortcut, "unsettled" if shortcut is None else "read")
    assert checkpoint.claimed_error == (None if error is None else pytest.approx(error, abs=1e-4))


@pytest.mark.parametrize(
    ("file", "shortcut"),
    [("akamaster-resnet56.th", "pad"), ("tomgoldstein-plain56.t7", "none")],
)
def test_settled_by_images(real, data, file, shortcut):
    images = data(file, num_images=100)
    # the other questions are left out to save time: each costs a pass through the network
    usual = {"stride_place": 1, "subsampling": "slice", "final_relu": True}
    checkpoint = resprobe.load(real / file, images=images, facts=usual)
    fact = checkpoint.facts["shortcut"]
    assert (fact.value, fact.how) == (shortcut, "settled")
    assert fact.scores.pop(shortcut) < 0.15
    assert min(fact.scores.values()) >= 5
    with torch.inference_mode():
        wrong = sum(int((checkpoint.model(batch).argmax(1) != labels).sum()) for batch, labels in images)
    assert wrong / 100 < 0.2


@pytest.mark.parametrize("file", ["hysts-preact20.pth", "abcrown-resnet2b.pth"])
def test_expected_lesions(real, data, file):
    expected = json.loads((real / "expected-lesions.json").read_text())[file]
    images = data(file)
    checkpoint = resprobe.load(real / file, images=data(file, num_images=200))
    units = [name for name in expected if name != "baseline"]
    chosen = units[-2:]
    result = resprobe.lesion(checkpoint.model, images, units=chosen)
    assert list(resprobe.units.find(checkpoint.model, torch.zeros(2, 3, 32, 32)).select(units)) == list(
        range(len(units))
    )
    for name, count, loss in zip(chosen, result.num_correct.values, result.loss.values, strict=True):
        assert count == expected[name]["num_correct"]
        assert loss == pytest.approx(expected[name]["mean_loss"], abs=1e-4)
    assert int(result.baseline_num_correct) == expected["baseline"]["num_correct"]
