"""EngineArgs: one flat record, honest about names it does not know."""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from headrace.config.args import AsyncEngineArgs, EngineArgs
from headrace.config.foreign import ForeignArgs


def test_every_field_has_help_and_a_group() -> None:
    foreign = {field.name for field in dataclasses.fields(ForeignArgs)}
    for field in dataclasses.fields(EngineArgs):
        if field.name in foreign:
            continue
        assert field.metadata["help"].endswith((".", "}.")), field.name
        assert field.metadata["group"], field.name


def test_model_may_be_positional() -> None:
    assert EngineArgs("a").model == "a"
    assert AsyncEngineArgs(model="a", seed=3).seed == 3


def test_unknown_option_is_a_type_error_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"max_num_seq'.*did you mean max_num_seqs"):
        EngineArgs(max_num_seq=5)
    with pytest.raises(TypeError, match=r"'zzz'$"):
        AsyncEngineArgs(zzz=1)


def test_swap_space_warns_and_is_dropped() -> None:
    with pytest.warns(DeprecationWarning, match="swap_space"):
        args = EngineArgs(swap_space=4)
    assert args.swap_space is None


def test_record_survives_replace_without_new_warnings() -> None:
    with pytest.warns(DeprecationWarning, match="swap_space"):
        args = EngineArgs("a", swap_space=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataclasses.replace(args, seed=1).seed == 1


def test_token_is_not_shown() -> None:
    assert "hidden" not in repr(EngineArgs(hf_token="hidden"))


def test_lists_are_not_shared_between_records() -> None:
    one, two = EngineArgs(), EngineArgs()
    one.hf_overrides["a"] = 1
    assert two.hf_overrides == {}
