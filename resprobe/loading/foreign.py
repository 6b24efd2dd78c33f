"""Opens a checkpoint that doesn't say what it is: recognised by its keys, settled by its statistics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from resprobe.errors import ResprobeError
from resprobe.loading.facts import ASSUMED, READ, SETTLED, UNSETTLED, Fact
from resprobe.loading.filling import filled
from resprobe.loading.patterns import compact
from resprobe.loading.questions import Answer, Question, answered, as_text, complete, first_choices, questions
from resprobe.loading.recognising import Recognition, recognise
from resprobe.loading.settling import Verdict, settle, some_images
from resprobe.loading.states import ChosenState
from resprobe.networks.blueprint import Blueprint, Choices
from resprobe.networks.flexible import FlexibleNetwork


@dataclass(frozen=True)
class ForeignNetwork:
    """A recognised network, with what is known and what is not.

    Attributes:
        path: Its file.
        state: Its tensors.
        recognition: What the keys say.
        asked: What they don't say.
        choices: The answers so far.
        given: Facts on the caller's word.
        recorded: Facts that the file records beside the tensors.
        verdict: What the statistics say, once some images have gone through.
    """

    path: Path
    state: ChosenState
    recognition: Recognition
    asked: tuple[Question, ...]
    choices: Choices
    given: Mapping[str, Any]
    recorded: Mapping[str, Any]
    verdict: Verdict | None = None

    @property
    def blueprint(self) -> Blueprint:
        """The network with the answers so far."""
        return complete(self.recognition.blueprint, self.choices)

    @property
    def unsettled(self) -> list[Question]:
        """The questions without an answer."""
        settled = self.verdict.settled if self.verdict is not None else frozenset()
        return [
            question
            for question in self.asked
            if question.is_open
            and len(question.options) > 1
            and question.matters(self.choices)
            and question.fact not in settled
        ]

    @property
    def unusual_choices(self) -> dict[str, Answer]:
        """The answers that differ from the most usual network of this kind."""
        usual = Choices(self.choices.shortcut)
        return {
            question.fact: getattr(self.choices, question.fact)
            for question in self.asked
            if question.matters(self.choices)
            and question.fact not in ("shortcut", "preactivation")
            and getattr(self.choices, question.fact) != getattr(usual, question.fact)
        }

    def build(self) -> FlexibleNetwork:
        """Build the network, with the first guess for what is unsettled."""
        return filled(self.blueprint, self.state.tensors)

    def settled_by(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> "ForeignNetwork":
        """Let images settle what is open, as far as they can; their size alone says something about strides."""
        shape = getattr(batches, "image_shape", None)
        if shape is not None:
            fresh = open_foreign(
                self.state,
                path=self.path,
                given=self.given,
                recorded=self.recorded,
                image_side=int(shape[1]),
                recognition=self.recognition,
            )
            return fresh._settled_by(batches)
        return self._settled_by(batches)

    def _settled_by(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> "ForeignNetwork":
        has_questions = any(question.has_statistics and len(question.options) > 1 for question in self.asked)
        if not self.recognition.blueprint.has_norm or not has_questions:
            return self
        images = some_images(batches)
        verdict = settle(self.recognition.blueprint, self.asked, self.choices, self.state.tensors, images)
        return replace(self, choices=verdict.choices, verdict=verdict)

    def refusal(self) -> ResprobeError | None:
        """Say what has to be known before anything can be measured, or None if everything is."""
        if not self.unsettled:
            return None
        facts = " and ".join(f"{q.fact} ({' or '.join(map(as_text, q.options))})" for q in self.unsettled)
        flags = " and ".join(
            ("--shortcut " if q.fact == "shortcut" else f"--fact {q.fact}=") + "|".join(map(as_text, q.options))
            for q in self.unsettled
        )
        if self.verdict is not None:
            scores = "; ".join(
                f"{q.fact} {', '.join(f'{name} {score:.3g}' for name, score in self.verdict.scores[q.fact].items())}"
                for q in self.unsettled
            )
            got = f"scores that don't settle it on {self.verdict.num_images} images ({scores})"
            action = f"check --data and --normalise, or give {flags}"
        elif not self.recognition.blueprint.has_norm:
            got, action = "keys that don't show it and no normalisation whose statistics could", f"give {flags}"
        else:
            got = "keys that don't show it"
            action = f"give --data and --normalise, so that the stored statistics settle it, or {flags}"
        return ResprobeError(f"{self.path}: expected to know {facts}, got {got}; {action}")

    def facts(self) -> dict[str, Fact]:
        """Give every fact with how it is known."""
        facts = _read_facts(self)
        known = self.blueprint.as_dict()
        for name in ("residual", "preactivation", "shortcut"):
            facts[name] = Fact(known[name], READ)
        unsettled = {question.fact for question in self.unsettled}
        for question in self.asked:
            if question.matters(self.choices):
                facts[question.fact] = self._fact(question, is_unsettled=question.fact in unsettled)
        shortcut = facts["shortcut"]
        is_known = shortcut.how != UNSETTLED
        facts["residual"] = Fact(known["residual"] if is_known else None, shortcut.how)
        if not self.recognition.blueprint.has_norm:
            facts["preactivation"] = Fact(known["preactivation"], ASSUMED)
        return facts

    def _fact(self, question: Question, *, is_unsettled: bool) -> Fact:
        value: Answer = getattr(self.choices, question.fact)
        scores = self.verdict.scores.get(question.fact, {}) if self.verdict is not None else {}
        if is_unsettled:
            return Fact(None, UNSETTLED, scores, tuple(map(as_text, question.options)))
        if question.fact in self.given or question.fact in self.recorded:
            return Fact(value, ASSUMED if question.fact in self.given else READ)
        if self.verdict is not None and question.fact in self.verdict.settled:
            return Fact(value, SETTLED, scores)
        return Fact(value, READ if question.is_open else ASSUMED, scores)


def open_foreign(
    state: ChosenState,
    *,
    path: Path,
    given: Mapping[str, Any],
    recorded: Mapping[str, Any],
    image_side: int | None = None,
    recognition: Recognition | None = None,
) -> ForeignNetwork:
    """Recognise a network.

    Args:
        state: Its tensors.
        path: Its file, for messages.
        given: Facts on the caller's word.
        recorded: Facts that the file records beside the tensors.
        image_side: Height of the images, where they are known.
        recognition: What its keys say, where that is known already.

    Returns:
        The network, not yet settled.

    Raises:
        ResprobeError: If it is not recognised, or the caller's facts are none that it can have.
    """
    recognition = recognition or recognise(state.tensors, path=path)
    asked: Sequence[Question] = questions(recognition, image_side=image_side)
    shortcut = first_choices(recognition, asked).shortcut
    asked_facts = {question.fact for question in asked}
    known = {fact: value for fact, value in recorded.items() if fact in asked_facts} | dict(given)
    asked = answered(asked, known, shortcut, path=path)
    return ForeignNetwork(path, state, recognition, tuple(asked), first_choices(recognition, asked), given, recorded)


def _read_facts(network: ForeignNetwork) -> dict[str, Fact]:
    """Give the facts that keys and shapes show."""
    blueprint, known = network.blueprint, network.blueprint.as_dict()
    blocks = blueprint.blocks
    sizes = [[block for block in blocks if block.stage == stage] for stage in range(blueprint.num_stages)]
    groups = max(convolution.groups for block in blocks for convolution in block.convolutions)
    height, width = blueprint.stem[0][0].kernel
    side = blueprint.head_side
    values: dict[str, bool | int | str] = {
        **{name: known[name] for name in ("depth", "width", "in_channels", "num_classes", "norm")},
        "block": "bottleneck" if blueprint.is_bottleneck else "basic",
        "blocks_per_stage": "-".join(str(len(stage)) for stage in sizes),
        "widths": "-".join(str(stage[-1].out_channels) for stage in sizes),
        "groups": groups,
        "convolution_bias": blocks[0].convolutions[0].has_bias,
        "stem": f"{len(blueprint.stem)} of {height}x{width}",
        "head": f"{len(blueprint.head)} linear on {'the mean' if side == 1 else f'a map of {side}x{side}'}",
        "state_dict": network.state.name,
    }
    if _is_pruned(blueprint):
        inner = ["/".join(str(convolution.out_channels) for convolution in block.convolutions) for block in blocks]
        values["layer_widths"] = " ".join(inner)
    if network.recognition.dead:
        values["dead_tensors"] = f"{len(network.recognition.dead)}: {compact(network.recognition.dead, most=6)}"
    return {name: Fact(value, READ) for name, value in values.items()}


def _is_pruned(blueprint: Blueprint) -> bool:
    """Whether convolutions in the same place of one stage differ in width."""
    widths: dict[tuple[int, int], set[int]] = {}
    for block in blueprint.blocks:
        for place, convolution in enumerate(block.convolutions):
            widths.setdefault((block.stage, place), set()).add(convolution.out_channels)
    return any(len(found) > 1 for found in widths.values())
