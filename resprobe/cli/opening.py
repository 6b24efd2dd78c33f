"""Opens what the command line names: a checkpoint, and the images that go with it."""

from collections.abc import Callable
from dataclasses import replace

from resprobe.cli.options import Common
from resprobe.data import ImageData, Normalisation, open_data
from resprobe.data.named import NAMES
from resprobe.errors import ResprobeError
from resprobe.loading import Checkpoint, load

Notify = Callable[[str], None]

MOST_TO_DEEPEN = 2000  # unless more are asked for: they change neither the statistics nor the comparison


def open_checkpoint(name: str, common: Common) -> Checkpoint:
    """Open a checkpoint as the options say; nothing is settled by images yet.

    Args:
        name: The file, or its name under `checkpoints/`.
        common: The options.

    Returns:
        The checkpoint.
    """
    return load(name, arch=common.arch, shortcut=common.shortcut, state=common.state, facts=parse_facts(common.fact))


def parse_facts(texts: list[str] | None) -> dict[str, bool | int | str]:
    """Read facts written as NAME=VALUE.

    Args:
        texts: The texts.

    Returns:
        Names and values.

    Raises:
        ResprobeError: If one has another form.
    """
    facts: dict[str, bool | int | str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ResprobeError(f"fact: expected NAME=VALUE, got {text!r}; write for example --fact padding=both")
        facts[name] = value
    return facts


def open_images(
    name: str, checkpoint: Checkpoint, common: Common, *, normalisation: Normalisation | None = None
) -> ImageData:
    """Open the images that a checkpoint is to see.

    Args:
        name: The checkpoint, for messages.
        checkpoint: The checkpoint.
        common: The options.
        normalisation: In place of the one that the options or the file name.

    Returns:
        The images, of as many channels and classes as the network knows.

    Raises:
        ResprobeError: If neither the options nor the file name them, or they don't fit the network.
    """
    data_name = common.data or checkpoint.data
    if data_name is None:
        raise ResprobeError(
            f"{name}: expected to know the data, got a file that doesn't say; give --data and --normalise"
        )
    # the file's own normalisation goes with the network, whatever images it is shown
    data = open_named_images(data_name, common, normalisation or common.normalise or checkpoint.normalisation)
    _check_fit(checkpoint, data)
    return data


def open_named_images(name: str, common: Common, normalisation: Normalisation | str | None) -> ImageData:
    """Open images by name, as the options say.

    Args:
        name: The dataset, a folder or a file.
        common: The options.
        normalisation: Of their pixels; None for the dataset's own.

    Returns:
        The images.
    """
    return open_data(
        name,
        split=common.split,
        num_images=common.num_images,
        normalisation=normalisation,
        batch_size=common.batch_size,
        data_dir=common.data_dir,
        download=common.download,
        image_size=common.image_size,
    )


def open_settled(name: str, common: Common, notify: Notify) -> tuple[Checkpoint, ImageData]:
    """Open a checkpoint and its images, and let these settle what the file doesn't show.

    Args:
        name: The file, or its name under `checkpoints/`.
        common: The options.
        notify: Takes lines that the user should read.

    Returns:
        The checkpoint and the images.
    """
    checkpoint = open_checkpoint(name, common)
    if checkpoint.data is None and common.data is None and checkpoint.foreign is not None:
        checkpoint.model  # noqa: B018  what is unsettled is the better message
    data = open_images(name, checkpoint, common)
    checkpoint = checkpoint.settled_by(data)
    for notice in checkpoint.notices:
        notify(notice)
    return checkpoint, data


def open_training_images(name: str, checkpoint: Checkpoint, common: Common) -> ImageData:
    """Open the images that a network is deepened with: of a named dataset, by default, those that it was trained on.

    Args:
        name: The checkpoint, for messages.
        checkpoint: The checkpoint.
        common: The options.

    Returns:
        The images; the first 2,000 of them if the options don't name a number.
    """
    if common.split is None and (common.data or checkpoint.data) in NAMES:
        common = replace(common, split="train")
    images = open_images(name, checkpoint, common)
    if common.num_images is None and images.num_images > MOST_TO_DEEPEN:
        images = open_images(name, checkpoint, replace(common, num_images=MOST_TO_DEEPEN))
    return images


def _check_fit(checkpoint: Checkpoint, data: ImageData) -> None:
    architecture = checkpoint.architecture
    pairs = {
        "channels": (architecture.in_channels, data.image_shape[0]),
        "classes": (architecture.num_classes, data.num_classes),
    }
    for what, (expected, got) in pairs.items():
        if got is not None and got != expected:
            raise ResprobeError(
                f"{data.name}: expected {expected} {what} for {checkpoint.path.name}, got {got}; "
                "choose the data that the network was trained on"
            )
