"""What a checkpoint's keys leave open: the possible answers, and the one that convention gives, where there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resprobe.errors import ResprobeError
from resprobe.loading.conventions import NO_HEAD_RELU
from resprobe.loading.recognising import Recognition
from resprobe.networks.blueprint import BlockPlan, Blueprint, Choices

CIFAR_SIDE = 32
Answer = bool | int | str


@dataclass(frozen=True)
class Question:
    """One thing that keys and shapes don't show.

    Attributes:
        fact: A field of `Choices`.
        options: The possible answers, the first guess first.
        is_open: Whether no convention answers it; else the first option may be assumed.
        has_statistics: Whether the answer changes what some batch normalisation sees.
        is_last_resort: Whether the answer is doubted only where no answers to the other questions fit.
    """

    fact: str
    options: tuple[Answer, ...]
    is_open: bool = False
    has_statistics: bool = True
    is_last_resort: bool = False

    def matters(self, choices: Choices) -> bool:
        """Tell whether the answer makes a difference, given the others."""
        residual = choices.shortcut != "none"
        return {
            "padding": residual,
            "subsampling": residual,
            "shortcut_input": residual and choices.preactivation,
            "final_relu": residual and not choices.preactivation,
            "first_relu": choices.preactivation,
            "head_relu": choices.preactivation,
        }.get(self.fact, True)


def questions(recognition: Recognition, *, image_side: int | None) -> list[Question]:
    """List what a network's keys leave open.

    Args:
        recognition: What the keys say.
        image_side: Height of the images, where they are known.

    Returns:
        The questions, the most consequential first.
    """
    blueprint = recognition.blueprint
    bare = [block for block in blueprint.blocks if block.projection is None]
    asked = []
    shortcuts = _shortcuts(blueprint)
    if len(shortcuts) > 1:
        asked.append(Question("shortcut", shortcuts, is_open=True))
    if shortcuts[0] != "none" and any(block.in_channels != block.out_channels for block in bare):
        asked.append(Question("padding", ("both", "end", "start"), is_open=True))
    asked.append(Question("preactivation", recognition.sides, is_open=True))
    if True in recognition.sides and shortcuts[0] != "none":
        asked.append(Question("shortcut_input", _shortcut_inputs(blueprint), is_open=True))
    if any(block.stride > 1 for block in bare):
        asked.append(Question("subsampling", ("slice", "average")))
    if any(block.stride > 1 for block in blueprint.blocks):
        asked.append(Question("stride_place", _stride_places(blueprint)))
    if len(blueprint.blocks[0].norms) > len(blueprint.blocks[0].convolutions):
        asked.append(Question("first_relu", (True, False)))
    asked.append(Question("final_relu", (True, False)))
    asked += _stem_questions(blueprint, image_side or CIFAR_SIDE)
    if blueprint.head_norm is not None:
        stem, first = NO_HEAD_RELU
        names = blueprint.stem[0][0].name, blueprint.blocks[0].convolutions[0].name
        relu = not (names[0] == stem and first.fullmatch(names[1]))
        asked.append(Question("head_relu", (relu, not relu), has_statistics=False))
    return asked


def first_choices(recognition: Recognition, asked: Sequence[Question]) -> Choices:
    """Answer every question with its first option, and the rest by what the keys show."""
    read = Choices(shortcut=_shortcuts(recognition.blueprint)[0], preactivation=recognition.sides[0])
    return replace(read, **{question.fact: question.options[0] for question in asked})  # type: ignore[arg-type]


def answered(asked: Sequence[Question], given: Mapping[str, Any], shortcut: str, *, path: Path) -> list[Question]:
    """Narrow the questions by what the caller says.

    Args:
        asked: The questions.
        given: Facts and their values, as values or as text.
        shortcut: The shortcut that the keys show, where it is no question.
        path: The checkpoint, for messages.

    Returns:
        The questions; one that the caller answers has that option alone and is not open.

    Raises:
        ResprobeError: If a fact is no question here, or the answer is none of its options.
    """
    narrowed = {question.fact: question for question in asked}
    for fact, value in given.items():
        question = narrowed.get(fact)
        if question is None and fact == "shortcut" and value == shortcut:
            continue
        if question is None:
            known = f"{shortcut}, as its keys show" if fact == "shortcut" else f"one of {', '.join(narrowed)}"
            what = "shortcut" if fact == "shortcut" else "fact"
            got = value if fact == "shortcut" else fact
            raise ResprobeError(f"{path}: expected as {what} {known}, got {got}; leave it out")
        matching = tuple(option for option in question.options if as_text(option) == as_text(value))
        if not matching:
            raise ResprobeError(
                f"{path}: expected as {fact} {' or '.join(map(as_text, question.options))}, "
                f"got {as_text(value)}; choose one of them"
            )
        narrowed[fact] = replace(question, options=matching, is_open=False)
    return list(narrowed.values())


def as_text(value: object) -> str:
    """Write an answer as it is given on the command line."""
    text = str(value).lower()
    return {"true": "yes", "false": "no"}.get(text, text)


def complete(blueprint: Blueprint, choices: Choices) -> Blueprint:
    """Put the answers into a blueprint."""
    first, *others = blueprint.blocks
    return replace(blueprint, blocks=(replace(first, stride=choices.first_stage_stride), *others), choices=choices)


def _shortcuts(blueprint: Blueprint) -> tuple[str, ...]:
    """Say which shortcuts the keys allow; option A can't lead to fewer channels."""
    if any(block.projection is not None for block in blueprint.blocks):
        return ("projection",)
    if any(block.out_channels < block.in_channels for block in blueprint.blocks):
        return ("none",)
    keeps = all(block.keeps_shape for block in blueprint.blocks)
    return ("identity" if keeps else "pad", "none")


def _shortcut_inputs(blueprint: Blueprint) -> tuple[str, ...]:
    has_projection = any(block.projection is not None for block in blueprint.blocks)
    options = [*(["projections"] if has_projection else []), "raw", "firsts", "first", "all"]
    if blueprint.num_stages == 1:
        options.remove("firsts")
    return tuple(options)


def _stride_places(blueprint: Blueprint) -> tuple[int, ...]:
    """Order the places of a block's stride: the first wide kernel, or where every such block changes its width."""
    strided = [block for block in blueprint.blocks if block.stride > 1]
    convolutions = strided[0].convolutions
    # behind the last wide kernel a stride only picks pixels, which it can do before as well
    last = max((place for place, c in enumerate(convolutions, start=1) if c.kernel != (1, 1)), default=1)
    places = range(1, last + 1)
    if blueprint.is_bottleneck:
        guess = last
    else:
        guess = next((place for place in places if all(_widens(block, place) for block in strided)), 1)
    return (guess, *(place for place in places if place != guess))


def _widens(block: BlockPlan, place: int) -> bool:
    convolution = block.convolutions[place - 1]
    return convolution.in_channels != convolution.out_channels


def _stem_questions(blueprint: Blueprint, side: int) -> list[Question]:
    """Ask for strides and pooling before the second stage: those of ImageNet's wide stems, or none."""
    is_wide = blueprint.stem[0][0].kernel[0] >= 7 or len(blueprint.stem) > 1
    first = blueprint.blocks[0]
    first_strides: tuple[int, ...] = (1,)
    if first.projection is not None:
        # a projection that keeps the width is there for its stride
        first_strides = (1, 2) if first.in_channels != first.out_channels else (2, 1)
    stem_strides = (2, 1) if is_wide else (1, 2)
    if blueprint.head_side > 1:
        later = 2 ** sum(block.stride > 1 for block in blueprint.blocks)
        fitting = [
            (stem, stage)
            for stem in stem_strides
            for stage in first_strides
            if side == blueprint.head_side * later * stem * stage
        ]
        if len(fitting) == 1 and not is_wide:
            return [Question("stem_stride", fitting[0][:1]), Question("first_stage_stride", fitting[0][1:])]
    answers = {"stem_stride": stem_strides, "stem_pool": (is_wide, not is_wide), "first_stage_stride": first_strides}
    return [Question(fact, options, is_last_resort=True) for fact, options in answers.items()]
