"""--engine: where the runs of compare, sweep and reproduce go, and how much each is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.core import processes
from holdfast.core.errors import BadInput, unknown

if TYPE_CHECKING:
    from holdfast.engines.job import Engine as Made

ENGINES = ("local", "ray")
Engine = Annotated[str, typer.Option(help="Where the runs go: local, or ray for a cluster (needs the package ray).")]
Jobs = Annotated[
    str | None,
    typer.Option(
        help="Runs at once on this machine, each with its share of the cores; auto is one a core, or one a GPU. "
        "[default: 1]",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: a cluster such as head:6379, or auto. [default: one on this machine, for the while]",
        show_default=False,
    ),
]
Cpus = Annotated[
    float | None, typer.Option(help="With --engine ray: CPUs of each run. [default: 1]", show_default=False)
]
Gpus = Annotated[
    float | None,
    typer.Option(
        help="With --engine ray: GPUs of each run, or a part of one, such as 0.25. [default: 1 on a GPU, else 0]",
        show_default=False,
    ),
]


def chosen(engine: str, jobs: str | None, address: str | None, cpus: float | None, gpus: float | None) -> Made:
    """The engine that these options name; an option of the other one is a mistake."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if processes.started() > 1 and (engine != "local" or jobs not in (None, "1")):
        raise BadInput(
            "processes of torchrun share each run, one run after another: leave out --engine and --jobs, or start "
            "holdfast without torchrun to have many runs at once"
        )
    if engine == "local":
        from holdfast.engines.local import local

        for name, value in (("address", address), ("cpus", cpus), ("gpus", gpus)):
            if value is not None:
                raise BadInput(f"--{name} is for a cluster: add --engine ray, or use --jobs for runs on this machine")
        return local(jobs or "1")
    from holdfast.engines.ray import Ray

    if jobs is not None:
        raise BadInput("--jobs is for runs on this machine: with --engine ray say what each is given by --cpus")
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if value is not None and value < 0:
            raise BadInput(f"--{name} must be at least 0, not {value:g}")
    return Ray(address, 1.0 if cpus is None else cpus, gpus)
