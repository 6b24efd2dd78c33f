import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from resprobe import compare_logits, fold_norm
from resprobe.errors import ResprobeError
from resprobe.networks import build, deepen, parse_architecture
from resprobe.networks.construction import units_to_reach
from resprobe.networks.identities import make_identity_convolution, make_identity_norm
from resprobe.networks.perceptrons import build_perceptron, deepen_perceptron

KINDS = [
    ("plain8", {}),
    ("preplain8", {}),
    ("resnet8", {}),
    ("preresnet8", {}),
    ("resnet8", {"shortcut": "projection"}),
    ("plain8", {"norm": "none"}),
    ("preplain8", {"norm": "none"}),
    ("resnet8", {"norm": "none"}),
    ("preresnet8", {"norm": "none"}),
]


def images(number: int = 40, side: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(number, 1, side, side, generator=torch.Generator().manual_seed(seed))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    labels = torch.arange(20) % 10
    return [(images(20, seed=seed), labels) for seed in (1, 2)]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join([kind[0], *kind[1].values()]))
def shallow(request, make_net):
    name, options = request.param
    return make_net(name, **options)


class TestSameFunction:
    @pytest.mark.parametrize("statistics", ["measured", "unit"])
    def test_logits_to_the_bit(self, shallow, statistics):
        deep = deepen(shallow, 6, batches=batches(), statistics=statistics)
        assert deep.architecture.depth == 20
        # also images of a size and contrast that no statistics were measured on
        for x in (images(), 30 * images(5, side=13)):
            for memory_format in (torch.contiguous_format, torch.channels_last):
                pair = (net.to(memory_format=memory_format) for net in (deep, shallow))
                with torch.no_grad():
                    got, expected = (net(x.to(memory_format=memory_format)) for net in pair)
                assert torch.equal(got, expected)
        assert expected.std() > 0.01

    def test_each_added_block_is_the_identity_where_it_stands(self, make_net):
        deep = deepen(make_net("plain20"), 6, batches=batches())
        x = F.relu(deep.bn1(deep.conv1(images())))
        with torch.no_grad():
            for stage in (deep.layer1, deep.layer2, deep.layer3):
                for index, block in enumerate(stage):
                    before, x = x, block(x)
                    assert (x.shape == before.shape and torch.equal(x, before)) == (index >= 3)

    def test_the_old_blocks_are_where_they_were_and_the_source_is_not_touched(self, shallow):
        before = copy.deepcopy(shallow.state_dict())
        deep = deepen(shallow, 3, batches=batches(), statistics="unit").state_dict()
        after = shallow.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        # of a pre-activation plain net, the normalisation behind each stage has moved into the new block
        moved = ("layer2.0.bn1", "layer3.0.bn1", "bn.") if shallow.architecture.name.startswith("preplain") else ()
        kept = [name for name in before if not name.startswith(moved or " ")]
        assert all(torch.equal(deep[name], before[name]) for name in kept)
        assert all(tensor.data_ptr() != after[name].data_ptr() for name, tensor in deep.items() if name in after)

    @pytest.mark.parametrize("name", ["plain20", "preplain20", "resnet20"])
    def test_folded_too(self, name, make_net):
        shallow = make_net(name)
        deep = deepen(shallow, 6, batches=batches())
        x = images()
        with torch.no_grad():
            torch.testing.assert_close(fold_norm(deep, x[:2])(x), fold_norm(shallow, x[:2])(x), rtol=1e-6, atol=1e-6)

    def test_a_module_in_training_is_taken_as_in_evaluation(self, make_net):
        shallow = make_net("plain8").train()
        deep = deepen(shallow, 3, batches=batches())
        assert shallow.training
        assert not any(module.training for module in deep.modules())
        assert torch.equal(deep(images()), shallow.eval()(images()))


def with_own_statistics(net: nn.Module) -> nn.Module:
    """Let normalisations store the statistics of what comes in on the images of `batches`, as training does."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        net.train()(torch.cat([part for part, _ in batches()]))
    return net.eval()


class TestBatchStatistics:
    def changes(self, name, statistics, make_net):
        shallow = with_own_statistics(make_net(name))
        deep = deepen(shallow, 6, batches=batches(), statistics=statistics)
        images, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
        return compare_logits(shallow, deep, [(images, labels)]).sel(bn_mode="batch")

    def test_a_plain_net_changes_much_less_with_measured_statistics(self, make_net):
        measured, unit = (self.changes("plain8", statistics, make_net) for statistics in ("measured", "unit"))
        assert unit.num_identical == 0
        assert unit.logit_change > 0.1 * unit.largest_logit
        assert 0 < measured.logit_change < 0.01 * measured.largest_logit

    @pytest.mark.parametrize("name", ["resnet8", "preresnet8"])
    def test_a_residual_net_does_not(self, name, make_net):
        result = self.changes(name, "measured", make_net)
        assert result.logit_change == 0
        assert result.num_identical == 40

    def test_measured_statistics_are_those_of_the_activations(self, make_net):
        shallow = make_net("plain20")
        deep = deepen(shallow, 3, batches=batches())
        x = torch.cat([part for part, _ in batches()])
        with torch.no_grad():
            activations = shallow.layer2(shallow.layer1(F.relu(shallow.bn1(shallow.conv1(x)))))
        for norm in (deep.layer2[3].bn1, deep.layer2[3].bn2):
            torch.testing.assert_close(norm.running_mean, activations.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
            var = activations.var((0, 2, 3), correction=0)
            torch.testing.assert_close(norm.running_var, var, rtol=1e-4, atol=1e-6)
        # with these statistics a batch gives back what comes in
        with torch.no_grad():
            block = deep.layer2[3].train()
            torch.testing.assert_close(block(activations), activations, rtol=1e-3, atol=1e-3)


class TestLearning:
    @pytest.mark.parametrize("name", ["plain20", "resnet20", "preresnet20"])
    def test_new_layers_get_a_gradient(self, name, make_net):
        deep = deepen(make_net(name), 3, batches=batches()).train()
        F.cross_entropy(deep(images()), torch.arange(40) % 10).backward()
        last = deep.layer2[3]
        gates = {"plain20": last.conv1.weight, "resnet20": last.bn2.weight, "preresnet20": last.conv2.weight}
        assert gates[name].grad.abs().sum() > 0

    def test_inner_weights_of_residual_units_follow_the_seed(self, make_net):
        shallow = make_net("resnet8")
        first, same, other = (deepen(shallow, 3, seed=seed).layer1[1].conv1.weight for seed in (0, 0, 1))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


class TestRefusals:
    @pytest.mark.parametrize(
        ("number", "nearest"), [(0, "3"), (-3, "3"), (1, "3"), (4, "3 or 6"), (17, "15 or 18"), (7, "6 or 9")]
    )
    def test_units_that_stages_can_not_share(self, number, nearest, make_net):
        with pytest.raises(ResprobeError, match=f"units: expected a multiple of 3, .*, got {number}; take {nearest}$"):
            deepen(make_net("resnet8"), number)

    def test_other_networks(self):
        with pytest.raises(
            ResprobeError, match="network: expected a plain or residual network of resprobe, got Linear"
        ):
            deepen(nn.Linear(2, 2), 3)

    def test_statistics(self, make_net):
        with pytest.raises(ResprobeError, match="statistics: expected measured or unit, got 'batch'"):
            deepen(make_net("plain8"), 3, statistics="batch")
        for given in (None, []):
            with pytest.raises(ResprobeError, match="batches: expected .* got none; give some"):
                deepen(make_net("plain8"), 3, batches=given)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("resnet56", "to: expected a deeper plainN for plain20, got resnet56"),
            ("preplain56", "to: expected a deeper plainN"),
            ("plain20", "to: expected more than the 20 layers of plain20, got plain20"),
            ("plain21", "depth: expected 6n"),
        ],
    )
    def test_targets(self, name, message):
        with pytest.raises(ResprobeError, match=message):
            units_to_reach(parse_architecture("plain20"), name)

    def test_target(self):
        assert units_to_reach(parse_architecture("plain20"), "plain56") == 18


class TestIdentities:
    @pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-6, 1e-3, 1.0, 7.3, 1e4])
    def test_a_norm_is_the_identity_to_the_bit_for_any_statistics(self, scale):
        generator = torch.Generator().manual_seed(0)
        norm = nn.BatchNorm2d(200).eval()
        mean, variance = (scale * torch.rand(200, generator=generator) for _ in range(2))
        make_identity_norm(norm, mean, variance)
        x = torch.randn(5, 200, 3, 3, generator=generator) * max(scale, 1)
        with torch.no_grad():
            assert torch.equal(norm(x), x)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, variance, rtol=1e-5, atol=1e-9)

    def test_the_default_has_scale_one(self):
        norm = nn.BatchNorm2d(3).eval()
        make_identity_norm(norm)
        assert norm.weight.tolist() == [1, 1, 1]
        assert norm.running_mean.tolist() == norm.bias.tolist() == [0, 0, 0]
        assert (norm.running_var + norm.eps).tolist() == [1, 1, 1]

    def test_without_care_it_is_not(self):
        """Plain rounding of the statistics misses the identity: the choice of neighbours does something."""
        generator = torch.Generator().manual_seed(0)
        mean, variance = (torch.rand(200, generator=generator) for _ in range(2))
        norm = nn.BatchNorm2d(200).eval()
        norm.running_mean, norm.running_var = mean, variance
        norm.weight.data, norm.bias.data = torch.sqrt(variance + norm.eps), mean.clone()
        x = torch.randn(5, 200, 3, 3, generator=generator)
        with torch.no_grad():
            assert not torch.equal(norm(x), x)

    @pytest.mark.parametrize("bias", [True, False])
    def test_convolution(self, bias):
        convolution = nn.Conv2d(5, 5, 3, padding=1, bias=bias)
        make_identity_convolution(convolution)
        x = torch.randn(3, 5, 7, 9)
        assert torch.equal(convolution(x), x)


class TestPerceptrons:
    def test_padding_changes_no_bit(self):
        shallow = build_perceptron(64, 6, seed=3)
        deep = deepen_perceptron(shallow, 42)
        assert len(deep.layers) == 48
        assert len(shallow.layers) == 6
        assert torch.equal(deep(images()), shallow(images()))
        # the naive way, from the weights alone
        x = images().flatten(1)
        for layer in deep.layers[:-1]:
            x = (x @ layer.weight.T + layer.bias).clamp(min=0)
        torch.testing.assert_close(deep(images()), x @ deep.layers[-1].weight.T + deep.layers[-1].bias)

    def test_variance_survives_depth(self):
        net = build_perceptron(256, 30, width=256, seed=0)
        assert 0.1 < net(torch.randn(200, 1, 16, 16)).std() < 10

    def test_random_state_is_not_touched(self):
        state = torch.random.get_rng_state()
        deepen_perceptron(build_perceptron(4, 2), 1)
        deepen(build(parse_architecture("resnet8", in_channels=1, width=2), seed=0), 3)
        assert torch.equal(state, torch.random.get_rng_state())

    def test_refusals(self):
        with pytest.raises(ResprobeError, match="layers: expected 2 or more, got 1"):
            build_perceptron(4, 1)
        with pytest.raises(ResprobeError, match="layers: expected 1 or more to add, got 0"):
            deepen_perceptron(build_perceptron(4, 2), 0)
