"""Settles what keys don't show by the statistics that a network's batch normalisations have stored.

Images that go through the right network give each normalisation inputs with about the mean and variance that it saw in
training. The score of a candidate network is the mean over normalisations of

    mean_c (m - running_mean)^2 / running_var  +  mean_c log(v / running_var)^2,

with m and v the mean and variance of channel c over images and pixels. No labels are needed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.loading.filling import filled
from resprobe.loading.questions import Answer, Question, as_text, complete
from resprobe.networks.blueprint import Blueprint, Choices, Norm

NUM_IMAGES = 200
NUM_LARGE_IMAGES = 64
LARGE_SIDE = 96

# Measured with 200 images on six checkpoints: right networks score 0.02 to 0.19 (0.19 where training drove the variance
# of whole layers to nothing), the mildest wrong ones (zeros on the other side of the channels) 0.3 to 1.7 and five
# times the right ones, a shortcut too many or too few 5 and more.
GOOD_SCORE = 0.25
CLEAR_RATIO = 2.0
CLEAR_GAP = 0.05
TINY_RATIO = 10.0
HOPELESS_SCORE = 5.0


@dataclass(frozen=True)
class Verdict:
    """What the statistics say.

    Attributes:
        choices: The candidate with the lowest score.
        scores: For each question, the score of each answer beside the best answers to the others. A candidate is given
            up as soon as it has reached 5: then the score is at least that.
        settled: The questions that are settled.
        num_images: Images that were used.
    """

    choices: Choices
    scores: Mapping[str, Mapping[str, float]]
    settled: frozenset[str]
    num_images: int

    @property
    def best_score(self) -> float:
        """The lowest score."""
        return min((min(scores.values()) for scores in self.scores.values()), default=math.inf)


def settle(
    blueprint: Blueprint,
    asked: Sequence[Question],
    choices: Choices,
    tensors: Mapping[str, torch.Tensor],
    images: torch.Tensor,
) -> Verdict:
    """Find the answers with which the network reproduces its stored statistics.

    One answer is changed at a time, as long as that lowers the score. An answer is settled if the best candidate
    scores at most 0.25 and every other answer, beside the best ones to the other questions, at least twice as much and
    0.05 more (or, of a tiny score, ten times as much): right and wrong candidates leave a gap there. A convention is
    given up only for an answer that is better by this margin.

    Args:
        blueprint: The network.
        asked: The questions.
        choices: The first guess.
        tensors: The checkpoint's tensors.
        images: Some normalised images `(N, C, H, W)`.

    Returns:
        The answers, the scores and what is settled.

    Raises:
        ResprobeError: If the network can't run on these images.
    """
    candidates = _Candidates(blueprint, tensors, images)
    usual = [question for question in asked if not question.is_last_resort]
    choices = _descend(candidates, usual, choices)
    if candidates.score(choices) > GOOD_SCORE:
        usual = list(asked)
        choices = _descend(candidates, usual, choices)
    table: dict[str, dict[str, float]] = {}
    settled = set()
    for question in _asked_of_statistics(usual, choices):
        scores = {option: candidates.score(_with(choices, question, option)) for option in question.options}
        table[question.fact] = {as_text(option): score for option, score in scores.items()}
        chosen = scores.pop(getattr(choices, question.fact))
        if chosen <= GOOD_SCORE and _is_clear(chosen, list(scores.values())):
            settled.add(question.fact)
    return Verdict(choices, table, frozenset(settled), len(images))


def _descend(candidates: "_Candidates", asked: Sequence[Question], choices: Choices) -> Choices:
    """Change one answer at a time for a better one, until none is better."""
    while True:
        before = choices
        for question in _asked_of_statistics(asked, choices):
            scores = {option: candidates.score(_with(choices, question, option)) for option in question.options}
            best = min(scores, key=scores.__getitem__)
            current = scores[getattr(choices, question.fact)]
            # open questions only have guesses; a convention needs a clear counterproof
            if scores[best] < current if question.is_open else _is_clear(scores[best], [current]):
                choices = _with(choices, question, best)
        if choices == before:
            return choices


def some_images(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Take the images that settling needs: 200, or 64 large ones.

    Args:
        batches: Pairs of normalised images `(B, C, H, W)` and labels.

    Returns:
        The first images `(N, C, H, W)`.

    Raises:
        ResprobeError: If there is none, or they are no images.
    """
    parts: list[torch.Tensor] = []
    wanted = NUM_IMAGES
    for images, _ in batches:
        if images.ndim != 4:
            raise ResprobeError(
                f"images: expected shape (N, C, H, W), got {tuple(images.shape)}; give images with channels"
            )
        wanted = NUM_LARGE_IMAGES if images.shape[-1] > LARGE_SIDE else NUM_IMAGES
        parts.append(images)
        if sum(map(len, parts)) >= wanted:
            break
    if not parts:
        raise ResprobeError("images: expected at least one batch, got none; give some images")
    return torch.cat(parts)[:wanted]


class _Candidates:
    """Scores of candidate networks, each computed once."""

    def __init__(self, blueprint: Blueprint, tensors: Mapping[str, torch.Tensor], images: torch.Tensor) -> None:
        self._blueprint, self._tensors = blueprint, tensors
        self._images = images.to(torch.float32, memory_format=torch.channels_last)
        self._scores: dict[Choices, float] = {}

    def score(self, choices: Choices) -> float:
        if choices not in self._scores:
            self._scores[choices] = self._measure(choices)
        return self._scores[choices]

    def _measure(self, choices: Choices) -> float:
        tally = _Tally()
        blueprint = complete(self._blueprint, choices)
        network = filled(blueprint, self._tensors, make_norm=lambda plan: _ScoredNorm(plan, tally))
        network.to(memory_format=torch.channels_last)
        tally.num_norms = sum(isinstance(module, _ScoredNorm) for module in network.modules())
        with torch.inference_mode():
            try:
                network(self._images)
            except _HopelessError:
                return tally.score
            except RuntimeError as error:
                raise ResprobeError(
                    f"images: expected some that the network can run on, got shape {tuple(self._images.shape[1:])} "
                    f"({str(error).splitlines()[0]}); choose the data that the network was trained on"
                ) from error
        return tally.score


class _HopelessError(Exception):
    """The score has become so high that the rest makes no difference."""


class _Tally:
    """Adds up the scores of a network's normalisations."""

    def __init__(self) -> None:
        self.num_norms = 0
        self._sum = 0.0

    @property
    def score(self) -> float:
        return self._sum / self.num_norms if math.isfinite(self._sum) else math.inf

    def add(self, score: float) -> None:
        self._sum += score
        # not >=, which a NaN would pass
        if not self.score < HOPELESS_SCORE:
            raise _HopelessError


class _ScoredNorm(nn.BatchNorm2d):
    """A batch normalisation that compares what comes in with its stored statistics."""

    def __init__(self, plan: Norm, tally: _Tally) -> None:
        super().__init__(plan.channels, affine=plan.is_affine)
        self._tally = tally

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise as always."""
        assert self.running_mean is not None
        assert self.running_var is not None
        # measured from the stored mean, which is near the real one in the right network, and by rows, which in
        # channels_last is twice as fast as torch.var_mean
        rows = input.permute(0, 2, 3, 1).reshape(-1, input.shape[1]) - self.running_mean
        shift = rows.mean(0)
        var = rows.square().mean(0) - shift.square()
        stored = self.running_var + self.eps
        stretch = ((var.clamp(min=0) + self.eps) / stored).log().square()
        self._tally.add(float((shift.square() / stored).double().mean() + stretch.double().mean()))
        return super().forward(input)


def _asked_of_statistics(asked: Sequence[Question], choices: Choices) -> list[Question]:
    return [q for q in asked if q.has_statistics and len(q.options) > 1 and q.matters(choices)]


def _with(choices: Choices, question: Question, option: Answer) -> Choices:
    return replace(choices, **{question.fact: option})  # type: ignore[arg-type]


def _is_clear(best: float, others: Sequence[float]) -> bool:
    gap = min(CLEAR_GAP, (TINY_RATIO - 1) * best)
    return all(other >= max(CLEAR_RATIO * best, best + gap) for other in others)
