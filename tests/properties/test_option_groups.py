"""Groups of options: the parser sees every option of a group, the command one record."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from capplan.cli.main import as_click
from capplan.cli.options import Group, fraction, grouped, measure, whole
from capplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Trip:
    """A record of questions."""

    riders: int
    time_s: float | None = None
    stops: list[str] | None = None
    full_fraction: float = 0.5
    return_too: bool = False


TRIP = Group(
    "Trip",
    riders=whole("--riders", "-r", of="people", most=50, says="Who goes."),
    time_s=measure("--time", says="How long."),
    stops=typer.Option("--stop", help="On the way."),
    full_fraction=fraction("--full", says="Share."),
)


def run(annotation, *words):
    seen = []

    @grouped
    def command(
        *,
        place: Annotated[str, typer.Argument()],
        trip: Annotated[Trip, annotation],
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> int:
        """Go."""
        seen.append((place, trip, loud))
        return 0

    as_click("go", command).main(["sea", *words], standalone_mode=False)
    return seen[0]


def test_a_command_is_handed_one_record_per_group():
    assert run(TRIP, "-r", "2") == ("sea", Trip(2), False)
    words = ("--time", "2 min", "--stop", "a", "--stop", "b", "--full", "90 %", "--riders", "10", "--loud")
    assert run(TRIP, *words) == ("sea", Trip(10, 120.0, ["a", "b"], 0.9), True)


def test_a_field_without_a_default_is_a_required_option():
    with pytest.raises(Exception, match="riders"):
        run(TRIP)


def test_options_that_are_left_out_of_a_group_are_unknown_and_keep_the_default():
    few = TRIP.only("riders")
    assert run(few, "--riders", "3")[1] == Trip(3)
    with pytest.raises(Exception, match="--time"):
        run(few, "--riders", "3", "--time", "2 min")


def test_an_option_of_a_field_that_the_record_lacks_is_an_error():
    with pytest.raises(KeyError, match="wheels"):
        run(Group("Trip", wheels=whole("--wheels", says="")))


def test_two_groups_with_the_same_field_are_an_error():
    def command(*, one: Annotated[Trip, TRIP], two: Annotated[Trip, TRIP]) -> int:
        """Go."""
        return one.riders + two.riders

    with pytest.raises(ValueError, match="riders"):
        grouped(command)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-r", "some"), "--riders: 'some' is not a whole number of people; write it as '8'"),
        (("-r", "51"), "--riders: '51' is out of range; 1 to 50 people are allowed"),
        (("-r", "2", "--full", "110 %"), "--full: '110 %' is out of range; 0 to 1"),
        (("-r", "2", "--time", "0 s"), "--time: '0 s' is not above zero; e.g."),
    ],
)
def test_what_an_option_cannot_be_is_said_with_its_name_and_what_is_allowed(words, message):
    with pytest.raises(InputError) as caught:
        run(TRIP, *words)
    assert message in str(caught.value)
