from __future__ import annotations

from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import MAX_LONG, JobSettings, TopicSettings, check_now_ms, load_config, parse_config
from lastkey.jobs.errors import BAD_NOW, BAD_SETTING, CONFIG_FILE, DONE, UNKNOWN_SETTING
from tests.builders.errors import raises_kind
from tests.builders.logs import write_partition

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_default_settings_equal_those_of_kafka():
    settings = load_config(None).topic_settings("any")
    assert settings.cleanup_policy == ("delete",)
    assert not settings.compacts
    assert settings.delete_retention_ms == 86_400_000
    assert settings.max_compaction_lag_ms == MAX_LONG
    assert (settings.segment_bytes, settings.index_interval_bytes) == (1 << 30, 4096)
    assert not settings.named


def test_shipped_file_has_every_setting_with_its_default():
    config = load_config(CONF / "cleaner.toml")
    assert config.topic_settings("any") == TopicSettings()
    assert config.job == JobSettings()
    assert set(config.defaults) | {"named"} == set(TopicSettings.__dataclass_fields__)


def test_shipped_example_sets_policies_of_topics():
    config = load_config(CONF / "topics.example.toml")
    assert config.topic_settings("orders-eu").compacts
    assert not config.topic_settings("orders-audit").compacts
    assert config.topic_settings("inventory").null_keys == "keep"
    assert config.topic_settings("other").delete_retention_ms == 172_800_000


def test_exact_name_overrides_globs_and_later_globs_override_earlier():
    config = parse_config(
        {
            "defaults": {"segment.bytes": 1000},
            "topics": {
                "a-b": {"segment.bytes": 4000},
                "a-*": {"segment.bytes": 2000, "cleanup.policy": "compact"},
                "*": {"segment.bytes": 3000},
            },
        }
    )
    assert config.topic_settings("a-b").segment_bytes == 4000
    assert config.topic_settings("a-c").segment_bytes == 3000
    assert config.topic_settings("a-c").named
    assert not config.topic_settings("b").named


def test_policy_as_list_and_as_string_are_equal():
    for value in ("compact,delete", ["delete", "compact"], "delete, compact"):
        settings = parse_config({"defaults": {"cleanup.policy": value}}).topic_settings("t")
        assert settings.compacts
        assert settings.expires


def test_smallest_index_size_of_kafka_is_accepted(tmp_path):
    write_partition(tmp_path / "archive" / "t-0", "a=1 | b=1 || a=2 | c=1")
    settings = tmp_path / "settings.toml"
    settings.write_text('[defaults]\n"cleanup.policy" = "compact"\n"segment.index.bytes" = 4\n')
    archive, store, config = str(tmp_path / "archive"), str(tmp_path / "store"), ["--config", str(settings)]
    assert cli.main(["compact", archive, "--store", store, "--sealed", *config]) == DONE
    assert cli.main(["verify", "--store", store]) == DONE
    assert cli.main(["verify", archive, *config]) == DONE


def test_unquoted_and_quoted_dotted_keys_are_equal():
    assert parse_config({"defaults": {"segment": {"bytes": 77}}}).topic_settings("t").segment_bytes == 77


@pytest.mark.parametrize(
    ("tables", "near"),
    [
        ({"defaults": {"segmnt.bytes": 1}}, "segment.bytes"),
        ({"topics": {"a": {"cleanup.polcy": "compact"}}}, "cleanup.policy"),
        ({"job": {"wave.partition": 1}}, "wave.partitions"),
        ({"default": {}}, "defaults"),
    ],
)
def test_error_for_an_unknown_name_suggests_the_nearest(tables, near):
    with raises_kind(UNKNOWN_SETTING, match=f"did you mean {near}") as raised:
        parse_config(tables, "my.toml")
    assert raised.value.exit_code == 2
    assert str(raised.value).startswith("my.toml: ")


@pytest.mark.parametrize(
    ("table", "setting", "value", "allowed"),
    [
        ("defaults", "segment.bytes", 13, "from 14 to 2147483647"),
        ("defaults", "segment.bytes", True, "whole number"),
        ("defaults", "segment.bytes", "1000", "whole number"),
        ("defaults", "max.compaction.lag.ms", 0, "from 1"),
        ("defaults", "min.cleanable.dirty.ratio", 1.1, "from 0 to 1"),
        ("defaults", "cleanup.policy", "compact,compact", "a list of"),
        ("defaults", "cleanup.policy", [], "a list of"),
        ("defaults", "null.keys", "ignore", "fail or keep or drop"),
        ("job", "wave.partitions", 0, "from 1"),
    ],
)
def test_error_for_a_bad_value_lists_allowed_values(table, setting, value, allowed):
    with raises_kind(BAD_SETTING, match=allowed) as raised:
        parse_config({table: {setting: value}})
    assert repr(value) in str(raised.value)


def test_contradicting_lags_are_refused_when_read():
    with raises_kind(BAD_SETTING, match=r"at most max\.compaction\.lag\.ms"):
        parse_config({"topics": {"a*": {"min.compaction.lag.ms": 2, "max.compaction.lag.ms": 1}}})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[defaults]\na = = 1\n", "line 2, column 5"), ("a = 1\n[defaults\n", "line 2, column 10"),
        ("a = ", "line 1, column 5"), ("a = 1\nb = 'x\n\n", "line 2"),
    ],
)  # fmt: skip
def test_invalid_toml_error_has_line_and_column(tmp_path, text, where):
    (tmp_path / "bad.toml").write_text(text)
    with raises_kind(CONFIG_FILE, match=where):
        load_config(tmp_path / "bad.toml")


def test_unreadable_settings_files_are_refused(tmp_path):
    with raises_kind(CONFIG_FILE, match="no such file"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[defaults\n")
    with raises_kind(CONFIG_FILE, match="expected TOML"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with raises_kind(CONFIG_FILE, match="found bytes that are not UTF-8"):
        load_config(tmp_path / "bytes.toml")


def test_now_option_accepts_epoch_milliseconds_and_refuses_seconds():
    check_now_ms(1_700_000_000_000)
    with raises_kind(BAD_NOW, match="did you mean 1700000000000"):
        check_now_ms(1_700_000_000)
    for wrong in (-1, 1_700_000_000_000_000):
        with raises_kind(BAD_NOW):
            check_now_ms(wrong)
