"""Trains the networks of checkpoints/ on digits and writes the manifest that says how each was made.

    python analyses/checkpoints.py        about forty minutes on two CPU cores; a network that is there is kept

Each network is trained by the command that the manifest names, run from the root of the repository. PyTorch's sums
depend on the number of threads, so the command fixes it to one: that way a training can be repeated.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "checkpoints"
WITHOUT_NORM = "-nonorm"
NAMES = (
    *("plain20", "plain56", "plain110", "resnet20", "resnet56", "resnet110", "preresnet110"),
    *(f"{name}{WITHOUT_NORM}" for name in ("plain20", "plain56", "resnet20", "resnet56")),
)
SEED = 0
PARALLEL = 2


def train_arguments(name: str) -> list[str]:
    """Give the arguments of `resprobe` that train a network."""
    architecture = name.removesuffix(WITHOUT_NORM)
    norm = [] if name == architecture else ["--norm", "none"]
    return [
        *("train", "--arch", architecture, *norm, "--data", "digits"),
        *("--seed", str(SEED), "--out", f"checkpoints/{name}.pt"),
    ]


def train_all() -> None:
    """Train every network that isn't there yet, a few at a time, the deepest first."""
    waiting = sorted(NAMES, key=lambda name: int("".join(filter(str.isdigit, name))))
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < PARALLEL:
            command = [sys.executable, "-m", "resprobe", *train_arguments(waiting.pop())]
            running.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        first = running.pop(0)
        if first.wait():
            sys.exit(f"{' '.join(map(str, first.args))} failed")  # type: ignore[arg-type]


def manifest_entry(name: str) -> dict[str, str | int | float]:
    """Describe a trained network: its file, how it was made, what it gets wrong."""
    path = FOLDER / f"{name}.pt"
    content = torch.load(path, map_location="cpu", weights_only=True)
    return {
        "file": path.name,
        "command": " ".join(["OMP_NUM_THREADS=1", "resprobe", *train_arguments(name)]),
        "seed": content["recipe"]["seed"],
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **{key: content[key] for key in ("train_loss", "train_error", "test_loss", "test_error")},
        "torch_version": content["torch_version"],
    }


def main() -> None:
    """Train, write the manifest, print its errors."""
    train_all()
    manifest = [manifest_entry(name) for name in NAMES]
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(table(manifest))


def table(manifest: Sequence[Mapping[str, Any]]) -> str:
    """Write losses and errors of networks as a table of Markdown."""
    rows = [
        f"| `{entry['file']}` | {entry['train_loss']:.4f} | {entry['train_error']:.1%} | {entry['test_error']:.1%} |"
        for entry in manifest
    ]
    return "\n".join(["| file | train loss | train error | test error |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    main()
