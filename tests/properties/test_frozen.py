"""A frozen record is what the dataclass of the standard library with the same fields is."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from inspect import signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.frozen import frozen

same = dataclass(frozen=True, slots=True)


@frozen
class Point:
    x: float
    y: float = 0.0
    marks: tuple[str, ...] = field(default_factory=tuple, repr=False)
    remark: str = field(default="", compare=False)
    shade: dict[str, int] | None = field(default=None, hash=False)


@frozen(kw_only=True)
class Named(Point):
    name: str
    z: float = 1.0

    def __post_init__(self):
        if not self.name:
            raise ValueError("no name")


@same
class StandardPoint:
    x: float
    y: float = 0.0
    marks: tuple[str, ...] = field(default_factory=tuple, repr=False)
    remark: str = field(default="", compare=False)
    shade: dict[str, int] | None = field(default=None, hash=False)


VALUES = st.fixed_dictionaries(
    {"x": st.sampled_from([0.0, 1.0, float("nan")])},
    optional={
        "y": st.sampled_from([0.0, 1.0]),
        "marks": st.sampled_from([(), ("a",)]),
        "remark": st.sampled_from(["", "b"]),
        "shade": st.sampled_from([None, {"c": 1}]),
    },
)


@given(VALUES, VALUES)
def test_records_are_equal_and_hashed_and_printed_as_by_the_standard_library(one, other):
    a, b, c, d = Point(**one), Point(**other), StandardPoint(**one), StandardPoint(**other)
    assert (a == b) is (c == d)
    assert repr(a) == repr(c).removeprefix("Standard")
    if a == b:
        assert hash(a) == hash(b)
    assert (hash(a) == hash(replace(a, shade={}))) is (hash(c) == hash(replace(c, shade={})))


def test_the_signature_has_fields_and_defaults_in_their_order():
    assert list(signature(Point).parameters) == [item.name for item in fields(Point)]
    assert signature(Point).parameters["y"].default == 0.0
    assert Point.__match_args__ == StandardPoint.__match_args__
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required positional argument: 'x'"):
        Point()


def test_fields_of_a_record_by_name_follow_those_of_its_base():
    assert Named(2.0, name="a") == Named(x=2.0, name="a", z=1.0) != Point(2.0)
    with pytest.raises(TypeError, match="takes from 2 to 6 positional arguments"):
        Named(2.0, 0.0, (), "", None, "a")
    with pytest.raises(ValueError, match="no name"):
        Named(2.0, name="")


def test_each_record_gets_a_default_of_its_own():
    @frozen
    class Listed:
        items: list[int] = field(default_factory=list)

    assert Listed().items is not Listed().items


@pytest.mark.parametrize("name", ["x", "other"])
def test_nothing_of_a_record_changes(name):
    point = Point(1.0)
    with pytest.raises(FrozenInstanceError, match=name):
        setattr(point, name, 2.0)
    with pytest.raises(FrozenInstanceError, match=name):
        delattr(point, name)
    assert not hasattr(point, "__dict__")


@pytest.mark.parametrize(
    "made", [copy.copy, copy.deepcopy, lambda record: pickle.loads(pickle.dumps(record))]
)
def test_a_copy_is_equal(made):
    record = Named(1.0, marks=("a",), name="b")
    assert made(record) == record


def test_a_class_keeps_the_methods_that_it_writes_and_inherits():
    @frozen
    class Short:
        x: float

        def __repr__(self):
            return "short"

    @frozen
    class Shorter(Short):
        y: float

    assert repr(Shorter(1.0, 2.0)) == "short"
    assert Shorter(1.0, 2.0) != Shorter(1.0, 3.0)
