"""Facts that keys don't show: settled by statistics, given, or unsettled."""

import pytest
import torch

import resprobe
from resprobe.errors import ResprobeError
from resprobe.loading.claims import claimed_error, describe_gap


class TestSettling:
    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("option A", {"shortcut": "pad", "padding": "both", "subsampling": "slice", "final_relu": True}),
            ("option A at the end", {"shortcut": "pad", "padding": "end", "subsampling": "slice"}),
            ("option A by average", {"shortcut": "pad", "padding": "start", "subsampling": "average"}),
            ("option A, one block", {"shortcut": "pad", "padding": "both"}),
            ("option A, one width", {"shortcut": "pad", "subsampling": "slice"}),
            ("plain", {"shortcut": "none", "residual": False}),
            ("shared pre-activation", {"shortcut_input": "projections"}),
            ("raw pre-activation", {"shortcut_input": "raw"}),
            ("no last norm", {"shortcut_input": "projections"}),
            ("final block", {"shortcut": "pad", "padding": "both", "stride_place": 2}),
        ],
    )
    def test_the_network_is_found(self, write, other, images, name, facts):
        network = other(name)
        checkpoint = resprobe.load(write(network.state_dict()), images=images)
        assert {fact: (checkpoint.facts[fact].value, checkpoint.facts[fact].how) for fact in facts} == {
            fact: (value, "settled") for fact, value in facts.items()
        }
        batch = images[0][0][:4]
        with torch.inference_mode():
            torch.testing.assert_close(checkpoint.model(batch), network(batch), rtol=1e-5, atol=1e-5)

    def test_scores(self, write, other, images):
        facts = resprobe.load(write(other("plain").state_dict()), images=images).facts
        assert facts["shortcut"].scores["none"] < 0.01
        assert facts["shortcut"].scores["pad"] > 1
        assert facts["shortcut"].as_dict()["scores"].keys() == {"pad", "none"}

    def test_dead_tensors_are_left_out_and_listed(self, write, other):
        checkpoint = resprobe.load(write(other("final block").state_dict()))
        assert checkpoint.facts["dead_tensors"].value.startswith("51: first_block.conv_block.{0,1,3,4}.weight")
        assert not any("conv_block" in key for key in checkpoint.network.state_dict())

    def test_labels_and_batches_make_no_difference(self, write, other, images):
        path = write(other("option A").state_dict())
        one = [(torch.cat([batch for batch, _ in images]), torch.ones(200, dtype=torch.int64))]
        assert resprobe.load(path, images=one).facts == resprobe.load(path, images=images).facts


class TestUnsettled:
    @pytest.mark.parametrize("name", ["option A", "plain"])
    def test_without_images(self, write, other, name):
        checkpoint = resprobe.load(write(other(name).state_dict()))
        shortcut = checkpoint.facts["shortcut"]
        assert (shortcut.value, shortcut.how, shortcut.options) == (None, "unsettled", ("pad", "none"))
        assert checkpoint.facts["residual"].how == "unsettled"
        assert checkpoint.name == "resnet14 or plain14"
        with pytest.raises(
            ResprobeError, match=r"expected to know shortcut .*--shortcut pad\|none and --fact padding=both"
        ):
            checkpoint.model  # noqa: B018

    def test_the_callers_word(self, write, other):
        path = write(other("option A at the end").state_dict())
        checkpoint = resprobe.load(path, shortcut="pad", facts={"padding": "end"})
        assert {checkpoint.facts[fact].how for fact in ("shortcut", "padding", "residual")} == {"assumed"}
        assert checkpoint.provenance["architecture"] == "resnet14, padding end"
        assert resprobe.load(path, shortcut="none").model.architecture.name == "plain14"

    def test_one_fact_given_the_other_settled(self, write, other, images):
        path = write(other("option A at the end").state_dict())
        facts = resprobe.load(path, shortcut="pad", images=images).facts
        assert (facts["shortcut"].how, facts["padding"].value, facts["padding"].how) == ("assumed", "end", "settled")

    def test_images_that_fit_no_candidate(self, write, other, images):
        strange = [(10 * batch + 5, labels) for batch, labels in images]
        checkpoint = resprobe.load(write(other("option A").state_dict()), images=strange)
        assert checkpoint.facts["shortcut"].how == "unsettled"
        with pytest.raises(
            ResprobeError, match=r"scores that don't settle it on 200 images \(shortcut pad .*--normalise"
        ):
            checkpoint.model  # noqa: B018

    def test_no_norms_no_settling(self, write, other, images):
        from resprobe.networks import build, parse_architecture

        path = write(build(parse_architecture("resnet8", norm="none", width=4), seed=0).state_dict())
        checkpoint = resprobe.load(path, images=images)
        with pytest.raises(ResprobeError, match="no normalisation whose statistics could; give --shortcut pad"):
            checkpoint.model  # noqa: B018

    def test_candidates_that_are_too_close(self, write, other, images):
        """Statistics that drifted away hide the side of the zeros, though every candidate is near."""
        network = other("option A, one block")
        tensors = {key: value.clone() for key, value in network.state_dict().items()}
        for stage in ("layer2.0", "layer3.0"):
            for leaf in ("running_mean", "running_var"):
                tensors[f"{stage}.bn1.{leaf}"] *= 1.3
        checkpoint = resprobe.load(write(tensors), shortcut="pad", images=images)
        padding = checkpoint.facts["padding"]
        assert (padding.value, padding.how) == (None, "unsettled")
        assert min(padding.scores.values()) < 0.25
        with pytest.raises(ResprobeError, match=r"expected to know padding .*or give --fact padding=both\|end\|start"):
            checkpoint.model  # noqa: B018

    def test_images_of_another_shape(self, write, other):
        grey = [(torch.randn(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64))]
        with pytest.raises(
            ResprobeError, match=r"images: expected some that the network can run on, got shape \(1, 16"
        ):
            resprobe.load(write(other("option A").state_dict()), images=grey)

    @pytest.mark.parametrize("stages", [[True] * 3, [True, False, False]])
    def test_recorded_settings(self, write, other, stages):
        content = {
            "config": {"model": {"preact_stage": stages}},
            "state_dict": other("raw pre-activation").state_dict(),
        }
        fact = resprobe.load(write(content)).facts["shortcut_input"]
        assert (fact.value, fact.how) == ("firsts" if all(stages) else "first", "read")


class TestClaims:
    @pytest.mark.parametrize(
        ("content", "error"),
        [
            ({"acc": 93.66}, 0.0634),
            ({"best_prec1": torch.tensor(91.78)}, 0.0822),
            ({"accuracy": 0.5339, "best_accuracy": 0.9}, 0.4661),
            ({"test_acc": 0.6925, "test_robust_acc": 0.5}, 0.3075),
            ({"test_error": 6.5}, 0.065),
            ({"best_error": 0.065}, 0.065),
            ({"acc": "high", "best_acc": 50}, 0.5),
            ({"acc": True, "epoch": 3}, None),
            ([1, 2], None),
        ],
    )
    def test_read(self, content, error):
        assert claimed_error(content) == (None if error is None else pytest.approx(error, abs=1e-6))

    @pytest.mark.parametrize(("wrong", "images", "warns"), [(120, 1000, True), (90, 1000, False), (12, 100, False)])
    def test_gap(self, wrong, images, warns):
        """A claim of 8 %: 12 % of 1,000 images is too far, 9 % is near, and 12 % of 100 could be chance."""
        warning = describe_gap(0.08, wrong, images)
        assert (warning is not None) == warns
        if warning is not None:
            assert "measured an error of 12.0 % where the file claims 8.0 %" in warning
            assert "--normalise" in warning
