"""The machine at hand: `capplan detect`."""

from capplan.cli import options as o
from capplan.cli.options import grouped


@grouped
def detect_command(*, to: o.Output) -> int:
    """Show the GPUs, the processor and the memory of this machine, and their names in the catalogue."""
    from capplan.readers.local_machine import local_machine
    from capplan.report.answers.local_machine import machine_here_answer
    from capplan.report.show import show

    return show(machine_here_answer(local_machine()), to)
