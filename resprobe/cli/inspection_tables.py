"""What a checkpoint is, as tables for the terminal."""

from rich.console import Console
from rich.table import Table

from resprobe.cli.inspection import Inspection
from resprobe.loading import Fact
from resprobe.loading.questions import as_text


def show_inspection(inspection: Inspection, console: Console) -> None:
    """Print an inspection: facts, units, and a line each for size and error.

    Args:
        inspection: What was found.
        console: Where to print.
    """
    checkpoint = inspection.checkpoint
    _line(console, f"{checkpoint.path.name}: {checkpoint.name}")
    console.print(_facts(inspection))
    if inspection.units:
        console.print(_units(inspection))
    channels, height, width = inspection.input_shape
    _line(
        console,
        f"{inspection.num_params:,} parameters, {inspection.multiply_adds:,} multiply-adds for an image of "
        f"{channels}x{height}x{width}",
    )
    claimed, measured = (
        "unknown" if error is None else f"{100 * error:.1f} %"
        for error in (checkpoint.claimed_error, inspection.baseline_error)
    )
    _line(console, f"error: claimed {claimed}, measured {measured}")
    if inspection.baselines:
        errors = ", ".join(f"{name} {100 * error:.1f} %" for name, error in inspection.baselines.items())
        _line(console, f"error by normalisation: {errors}")


def _facts(inspection: Inspection) -> Table:
    table = _table("fact", "value", "known", "scores")
    for name, fact in inspection.facts.items():
        scores = ", ".join(f"{option} {score:.3g}" for option, score in fact.scores.items())
        table.add_row(name, _value(fact), fact.how, scores)
    return table


def _value(fact: Fact) -> str:
    if fact.value is None:
        return f"{' or '.join(fact.options)}?" if fact.options else "?"
    return as_text(fact.value) if isinstance(fact.value, bool) else str(fact.value)


def _units(inspection: Inspection) -> Table:
    table = _table("unit", "kind", "shortcut", "stage", "layers", "parameters", "output", "status")
    for unit in inspection.units:
        kind, shortcut = (unit.kind, unit.shortcut) if inspection.shortcut_is_known else ("?", "?")
        shape = "x".join(str(size) for size in unit.output_shape)
        numbers = (str(unit.stage), str(unit.branch_layers), f"{unit.num_params:,}", shape)
        table.add_row(unit.name, kind, shortcut, *numbers, unit.status)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
