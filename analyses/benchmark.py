"""Speed of the analyses, as ratios within one run.

    python analyses/benchmark.py                     lesion of a ResNet-56 on 1,000 images
    python analyses/benchmark.py --images 200        shorter, for a first look
    python analyses/benchmark.py --study paths gradients --images 300

`lesion`: the naive way deletes a unit with hooks and runs the whole model, once per unit; both ways see the same images
in the same batches. Weights are random: they decide neither the work nor its cost. With `--ckpt`, `--arch`, `--data`
and `--normalise` a real checkpoint takes their place. `--precision float32 bfloat16` shows what the smaller type gains,
or loses on a CPU without instructions for it.

`paths`: the exact split of one batch by path length, in backward passes of the whole network that compute nothing but
the gradient by its input (channels_last, normalisations folded, the activations kept).

`gradients`: all that `resprobe.gradients` measures, against one plain forward and backward pass over the same batches,
the gradient of the mean loss of a batch by all parameters. The two take turns, and the median of their ratios counts.

`smoothness`: `resprobe.smoothness` in each mode of batch normalisation, against the forward and backward passes that
its grid of steps needs, which are counted too.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import resprobe
from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of, pick_device
from resprobe.engine.prefix_sharing import intact
from resprobe.engine.scoring import fast_segments, score
from resprobe.normalisation.bn_modes import in_mode, modes_of
from resprobe.probes.paths.measuring import prepare
from resprobe.probes.paths.splits import split_by_length
from resprobe.probes.paths.tape import Tape
from resprobe.units import Segments, WholeModel, find

Batches = list[tuple[torch.Tensor, torch.Tensor]]

SMOOTHNESS_BATCHES = 2


def naive_counts(model: nn.Module, batches: Batches, names: list[str]) -> list[int]:
    """Count correct images by one hooked forward pass per deletion, the intact model first."""
    counts = []
    for deleted_units in ([], *([name] for name in names)):
        with resprobe.deleted(model, deleted_units), torch.inference_mode():
            counts.append(sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches))
    return counts


def timed_lesion(model: nn.Module, batches: Batches, precision: str) -> tuple[list[int], float]:
    """Count correct images by `resprobe.lesion`, and take the time."""
    start = time.perf_counter()
    result = resprobe.lesion(model, batches, precision=precision)
    seconds = time.perf_counter() - start
    return [int(result.baseline_num_correct), *result.num_correct.values.tolist()], seconds


def timed_pass(segments: Segments | WholeModel, batches: Batches, precision: str) -> float:
    """Take the time in which the intact model alone is scored on all images; the first pass warms up."""
    plans = [intact(len(segments.units))]
    for _ in range(2):
        data = CheckedBatches(batches, batches[0][0].device)
        start = time.perf_counter()
        score(segments, plans, data, precision=precision)
        seconds = time.perf_counter() - start
    return seconds


def random_batches(num_images: int, batch_size: int, device: torch.device) -> Batches:
    """Make normal images of CIFAR's shape with random labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(10, (num_images,), generator=generator).to(device)
    rows = range(0, num_images, batch_size)
    return [(images[row : row + batch_size], labels[row : row + batch_size]) for row in rows]


def with_random_statistics(model: nn.Module) -> nn.Module:
    """Give normalisations statistics and scales that keep a deep net's logits in range but not all alike."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in ((module.weight, 0.1, 0.5), (module.running_var, 0.5, 2.0)):
                assert tensor is not None
                tensor.data.uniform_(low, high, generator=generator)
    return model.eval()


def plain_pass(model: nn.Module, batches: Batches) -> None:
    """Run forward and backward as anyone would: the gradient of each batch's mean loss by all parameters."""
    parameters = list(model.parameters())
    for images, labels in batches:
        torch.autograd.grad(F.cross_entropy(model(images), labels), parameters)


def timed(run: Callable[[], object]) -> float:
    """Take the time of a call."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def study_lesion(model: nn.Module, batches: Batches, arguments: argparse.Namespace) -> None:
    """Print the time of a lesion study against one hooked pass per deletion, and what bfloat16 changes."""
    segments = find(model, batches[0][0][:2])
    names = [unit.name for unit in segments.units]
    start = time.perf_counter()
    expected = naive_counts(model, batches, names)
    naive_seconds = time.perf_counter() - start
    print(f"one hooked pass per deletion   {naive_seconds:7.1f} s")
    seconds = {}
    for precision in arguments.precision:
        counts, seconds[precision] = timed_lesion(model, batches, precision)
        difference = int(np.abs(np.array(counts) - expected).max())
        ratio = naive_seconds / seconds[precision]
        print(f"resprobe.lesion, {precision:9}     {seconds[precision]:7.1f} s   ratio {ratio:5.2f}", end="")
        print(f"   largest difference of a count {difference}")

    # Each deletion needs the units behind it once more: n + n (n - 1) / 2 unit passes, half of the naive n (n + 1).
    # A whole pass repeats what comes before and after the units as well, so the study may take a little less.
    precision = arguments.precision[0]
    fast_pass = timed_pass(fast_segments(segments, precision), batches, precision)
    passes = (len(names) + 1) / 2
    print(f"one pass, folded, channels_last {fast_pass:6.2f} s   naive {naive_seconds / (len(names) + 1):6.2f} s")
    print(
        f"resprobe.lesion, {precision}, took {seconds[precision] / fast_pass:.1f} such passes, its units {passes:.1f}"
    )


def study_gradients(model: nn.Module, batches: Batches, arguments: argparse.Namespace) -> None:
    """Print the time of `resprobe.gradients` against one plain forward and backward pass."""
    plain_pass(model, batches[:1])
    plain, ours = [], []
    for _ in range(arguments.repeats):
        plain.append(timed(lambda: plain_pass(model, batches)))
        ours.append(timed(lambda: resprobe.gradients(model, batches)))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))
    print(f"one plain forward and backward pass {statistics.median(plain):6.2f} s")
    print(f"resprobe.gradients                  {statistics.median(ours):6.2f} s   ratio {ratio:5.2f}", end="")
    print(f"   of {arguments.repeats} repeats, {min(map(min, (plain, ours))):.2f} s the shortest")


def study_paths(model: nn.Module, batches: Batches, arguments: argparse.Namespace) -> None:
    """Print the time of the exact split by path length in input-gradient backward passes of the whole network."""
    images, labels = batches[0]
    found = find(model, images[:2])
    assert isinstance(found, Segments)
    segments = prepare(found, "float32")
    tape = Tape(segments, images.contiguous(memory_format=torch.channels_last), labels)
    split_by_length(tape, "input")
    passes, splits, calls = [], [], []
    for _ in range(arguments.repeats):
        passes.append(statistics.median(timed(lambda: tape.whole("input")) for _ in range(3)))
        splits.append(timed(lambda: split_by_length(tape, "input")))
        calls.append(timed(lambda: resprobe.paths(model, batches[:1])))
    split, call = (
        statistics.median(mine / one for mine, one in zip(times, passes, strict=True)) for times in (splits, calls)
    )
    # n (n + 1) / 2 products with single branches are (n + 1) / 2 with all of them
    floor = (len(segments.units) + 1) / 2
    print(f"one input-gradient backward pass {statistics.median(passes):6.3f} s, {len(images)} images")
    print(f"exact split by path length      {statistics.median(splits):7.2f} s   {split:5.1f} such passes", end="")
    print(f"   floor {floor:g}, reached {floor / split:.0%}")
    print(f"resprobe.paths, all of the call {statistics.median(calls):7.2f} s   {call:5.1f} such passes")


def study_smoothness(model: nn.Module, batches: Batches, arguments: argparse.Namespace) -> None:
    """Print the time of `resprobe.smoothness` against that of the passes that its steps need, mode by mode."""
    batches = batches[:SMOOTHNESS_BATCHES]
    num_passes = 0

    def counted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal num_passes
        num_passes += 1
        return F.cross_entropy(outputs, labels)

    for mode in modes_of(model):
        network = in_mode(model, mode, torch.float32, batches[0][0][:2].clone())
        plain_pass(network, batches[:1])
        plain, ours = [], []
        for _ in range(arguments.repeats):
            num_passes = 0
            ours.append(timed(functools.partial(resprobe.smoothness, model, batches, bn_modes=[mode], loss=counted)))
            plain.append(timed(functools.partial(_plain_passes, network, batches, num_passes // len(batches))))
        ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))
        print(f"smoothness, {mode:8} {num_passes:4d} passes over {len(batches)} batches, ", end="")
        print(f"{statistics.median(ours):6.2f} s   ratio {ratio:5.2f} to the passes alone, {arguments.repeats} repeats")


def _plain_passes(model: nn.Module, batches: Batches, times: int) -> None:
    for _ in range(times):
        plain_pass(model, batches)


STUDIES: dict[str, Callable[[nn.Module, Batches, argparse.Namespace], None]] = {
    "lesion": study_lesion,
    "paths": study_paths,
    "gradients": study_gradients,
    "smoothness": study_smoothness,
}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", nargs="+", default=["lesion"], choices=list(STUDIES))
    parser.add_argument("--arch", default="resnet56")
    parser.add_argument("--ckpt", help="a checkpoint, with --data and --normalise")
    parser.add_argument("--data")
    parser.add_argument("--normalise")
    parser.add_argument("--precision", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3, help="of all but lesion")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def main() -> None:
    """Make model and batches, and run the studies."""
    arguments = parse_arguments()
    device = pick_device(arguments.device)
    if arguments.ckpt:
        model: nn.Module = resprobe.load(arguments.ckpt, arch=arguments.arch).model.to(device)
        data = resprobe.open_data(
            arguments.data,
            normalisation=arguments.normalise,
            num_images=arguments.images,
            batch_size=arguments.batch_size,
        )
        batches = [(images.to(device), labels.to(device)) for images, labels in data]
    else:
        network = resprobe.build(resprobe.parse_architecture(arguments.arch), seed=0)
        model = with_random_statistics(network).to(device)
        batches = random_batches(arguments.images, arguments.batch_size, device)
    num_units = len(find(model, batches[0][0][:2]).units)
    print(
        f"{arguments.arch}, {num_units} units, {arguments.images} images in batches of {arguments.batch_size}, ", end=""
    )
    print(f"{device_of(model)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for study in arguments.study:
        STUDIES[study](model, batches, arguments)


if __name__ == "__main__":
    main()
