"""The table of vLLM's settings: what its rows mean for arguments, checks and the stack file."""

import pytest
from llmd_oke.catalogue import release_names
from llmd_oke.config import Engine
from llmd_oke.config.engine import EngineSetting, EngineSettings, Flag, ReservedFlag, SettingValue, engine_settings

SWITCH = EngineSetting(flag="enable-speed", text="Faster.", kind="boolean")
SHARE = EngineSetting(flag="spare-share", text="Spare.", kind="number", vllm=Flag(kind="number", aliases=("-ss",)))


@pytest.mark.parametrize(
    ("setting", "value", "argument", "written"),
    [
        (SWITCH, True, "--enable-speed", "true"),
        (SWITCH, False, "--no-enable-speed", "false"),
        (SHARE, 0.50, "--spare-share=0.5", "0.5"),
        (SHARE, 1.0, "--spare-share=1", "1"),
        (SHARE, 0.9123456789, "--spare-share=0.9123456789", "0.9123456789"),
        (SHARE, 64, "--spare-share=64", "64"),
    ],
)
def test_a_vllm_setting_of_the_stack_file_becomes_one_vllm_argument(
    setting: EngineSetting, value: SettingValue, argument: str, written: str
):
    assert (setting.argument(value), setting.written(value)) == (argument, written)
    assert setting.read(written) == value


def test_all_notations_of_a_vllm_flag_are_assigned_to_its_stack_file_key_and_type():
    port = ReservedFlag(flag="port", instead="nothing", vllm=Flag(kind="integer"))
    assert EngineSettings(settings=(SWITCH, SHARE), reserved=(port,)).taken() == {
        "--enable-speed": "engine.enableSpeed",
        "--no-enable-speed": "engine.enableSpeed",
        "--spare-share": "engine.spareShare",
        "-ss": "engine.spareShare",
        "--port": "nothing",
    }
    flags = EngineSettings(settings=(SWITCH, SHARE), reserved=()).flags()
    assert flags == {"enable-speed": Flag(kind="boolean"), "spare-share": Flag(kind="number", aliases=("-ss",))}


def test_each_entry_of_the_vllm_settings_table_is_a_stack_file_key_with_its_default():
    rows = engine_settings().settings
    defaults = {row.field: row.default for row in rows if row.default is not None}
    assert Engine.model_validate(defaults).settings() == Engine().settings() == defaults
    assert {row.since for row in rows} - {None} <= set(release_names())


def test_omitted_vllm_settings_are_hashed_only_where_the_table_says_so():
    rows, hashed = engine_settings().settings, Engine().model_dump()
    absent = {row.field for row in rows if row.default is None}
    assert absent & hashed.keys() == {row.field for row in rows if row.hashed_if_absent}


def test_a_roles_servers_have_all_roles_settings_where_the_role_has_none_of_its_own():
    engine = Engine.model_validate({"max_num_seqs": 64, "prefill": {"gpu_memory_utilization": 0.8}})
    prefill = engine.of_role("prefill")
    assert (prefill.max_num_seqs, prefill.gpu_memory_utilization) == (64, 0.8)
