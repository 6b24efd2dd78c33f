import pytest
import torch

import resprobe
from resprobe.errors import ResprobeError
from resprobe.loading.states import strip_prefixes
from resprobe.networks import build, parse_architecture


def state_dict(seed=0):
    return dict(build(parse_architecture("resnet8", width=4, shortcut="projection"), seed=seed).state_dict())


PLAIN, AVERAGE = state_dict(0), state_dict(1)
OPTIMIZER = {"state": {0: {"step": torch.ones(1), "exp_avg": torch.ones(4, 3)}}, "param_groups": [{"lr": 0.1}]}


class TestChoice:
    @pytest.mark.parametrize(
        ("content", "place"),
        [
            (PLAIN, "the file itself"),
            ({"state_dict": PLAIN, "optimizer": OPTIMIZER, "epoch": 3}, "state_dict"),
            ({"net": PLAIN, "acc": 93.0, "epoch": 3}, "net"),
            ({"epoch": 3, "state_dict_ema": AVERAGE, "state_dict": PLAIN}, "state_dict"),
            ({"model_ema": AVERAGE, "model": PLAIN, "opt": OPTIMIZER}, "model"),
            ({"model": {"ema": AVERAGE, "state_dict": PLAIN}}, "model.state_dict"),
            ({"model": {"ema": AVERAGE, "main": PLAIN}}, "model.main"),
            ({"shadow": AVERAGE, "student": PLAIN}, "student"),
            ([PLAIN, AVERAGE], "0"),
            ({"networks": [PLAIN, AVERAGE]}, "networks.0"),
            ({"ema": PLAIN}, "ema"),
            ({**PLAIN, "epoch": 3, "meta": {"lr": 0.1}}, "the file itself"),
        ],
    )
    def test_the_conventional_place(self, write, content, place):
        checkpoint = resprobe.load(write(content))
        assert checkpoint.facts["state_dict"].value == place
        assert torch.equal(checkpoint.model.conv1.weight, PLAIN["conv1.weight"])

    def test_another_place(self, write):
        path = write({"state_dict_ema": AVERAGE, "state_dict": PLAIN})
        checkpoint = resprobe.load(path, state="state_dict_ema")
        assert torch.equal(checkpoint.model.conv1.weight, AVERAGE["conv1.weight"])
        (notice,) = resprobe.load(path).notices
        assert notice == "net.pt: took state_dict; --state also offers state_dict_ema"

    def test_unknown_place(self, write):
        path = write({"state_dict_ema": AVERAGE, "state_dict": PLAIN})
        with pytest.raises(ResprobeError, match="expected as state state_dict_ema or state_dict, got 'ema'"):
            resprobe.load(path, state="ema")


class TestPrefixes:
    @pytest.mark.parametrize(
        ("names", "stripped", "prefix"),
        [
            (["module.conv.weight", "module.fc.bias"], ["conv.weight", "fc.bias"], "module"),
            (
                ["_orig_mod.module.model.a.weight", "_orig_mod.module.model.b"],
                ["a.weight", "b"],
                "_orig_mod.module.model",
            ),
            (["net.module.backbone.0.weight"], ["0.weight"], "net.module.backbone"),
            (["model.a.weight", "head.weight"], ["model.a.weight", "head.weight"], ""),
            (["features.module.0.weight", "fc.weight"], ["features.0.weight", "fc.weight"], ""),
            (["features.module.0.weight", "features.1.weight"], ["features.module.0.weight", "features.1.weight"], ""),
            (["encoder.a.weight", "encoder.b.weight"], ["encoder.a.weight", "encoder.b.weight"], ""),
            (["n_averaged", "module.a.weight"], ["a.weight"], "module"),
            (["net.weight", "net.bias"], ["weight", "bias"], "net"),
        ],
    )
    def test_strip(self, names, stripped, prefix):
        tensors, got = strip_prefixes({name: torch.zeros(1) for name in names})
        assert list(tensors) == stripped
        assert got == prefix
