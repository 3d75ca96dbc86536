"""Components' arguments made from the records of a plan."""

import asyncio
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import pulumi
import pytest
from llmd_base.records import MissingSourceError, UnknownFieldError
from llmd_oke import catalogue
from llmd_oke.program.arguments import arguments
from pydantic import BaseModel


class _Taint(BaseModel):
    key: str
    value: str | None = None


@dataclass(frozen=True)
class _Pool:
    name: str
    size: int
    taints: tuple[_Taint, ...] = ()

    @property
    def gpus(self) -> int:
        return 8 * self.size


class _PoolArgs(TypedDict):
    name: str
    size: pulumi.Input[int]
    taints: NotRequired[list[dict[str, str]]]
    gpus: NotRequired[int]


def test_each_component_argument_is_read_from_the_record_field_of_its_name():
    assert arguments(_PoolArgs, _Pool("mi300x", 2)) == {"name": "mi300x", "size": 2, "taints": [], "gpus": 16}


def test_values_given_for_component_arguments_take_precedence_over_records():
    made = arguments(_PoolArgs, {"size": 1}, _Pool("mi300x", 2), gpus=None)
    assert made == {"name": "mi300x", "size": 1, "taints": [], "gpus": None}


def test_nested_records_become_component_arguments_without_unset_fields():
    taint = _Taint(key="amd.com/gpu")
    assert arguments(_PoolArgs, _Pool("mi300x", 2, (taint,)))["taints"] == [{"key": "amd.com/gpu"}]


def test_pulumi_outputs_are_passed_to_components_unchanged():
    async def made() -> None:
        size = pulumi.Output.from_input(3)
        assert arguments(_PoolArgs, _Pool("mi300x", 2), size=size)["size"] is size

    asyncio.run(made())


def test_optional_component_arguments_that_no_record_provides_are_refused():
    with pytest.raises(MissingSourceError, match=r"_PoolArgs: nothing given has taints, gpus\."):
        arguments(_PoolArgs, name="mi300x", size=2)


def test_a_value_for_an_unknown_component_argument_is_refused_by_name():
    with pytest.raises(UnknownFieldError, match=r"_PoolArgs has no colour\."):
        arguments(_PoolArgs, _Pool("mi300x", 2), colour="red")


def test_catalogue_entries_are_passed_to_components_unchanged():
    shape = catalogue.shape("BM.GPU.MI300X.8")
    assert shape is not None
    assert arguments(_ShapeArgs, shape=shape)["shape"] is shape


class _ShapeArgs(TypedDict):
    shape: catalogue.Shape
