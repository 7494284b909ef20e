"""The hint format: what is written is read, the schema says the same, and bad hints are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_ray.dart import AnchorMark, DemandState, NodeKind
from prism_ray.dart.hints import (
    ANCHORS_ACTION,
    ANCHORS_MAX,
    DEMAND_ACTION,
    ROWS_MAX,
    BadHint,
    dump_anchors,
    dump_demand,
    envelope,
    parse_anchors,
    parse_demand,
    schema,
)
from prism_ray.model import Demand, DemandTable

keys = st.binary(min_size=1, max_size=32)
marks = st.lists(
    st.builds(
        AnchorMark,
        st.integers(0, 50_000),
        st.sampled_from(NodeKind),
        st.none() | keys,
        st.none() | keys,
    ),
    max_size=8,
).map(lambda found: tuple(sorted(found, key=lambda mark: mark.offset_tokens)))
tables = st.builds(
    DemandTable,
    st.integers(0, 1 << 40),
    st.lists(st.builds(Demand, keys, st.floats(-1e9, 1e9), st.integers(-1, 99)), max_size=6).map(
        tuple
    ),
)


def over_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(marks)
def test_anchors_survive_the_way_over_json(found):
    assert parse_anchors(over_json(dump_anchors(found))) == found


@given(tables, st.text(max_size=9))
def test_a_demand_table_survives_the_way_over_json(table, epoch):
    assert parse_demand(over_json(dump_demand(table, epoch))) == (table, epoch)


@given(marks, tables)
def test_what_we_write_follows_the_published_schema(found, table):
    made = envelope("m", found, dump_demand(table))
    jsonschema.validate(over_json(made), schema(), jsonschema.Draft202012Validator)


def test_nothing_to_say_is_no_envelope():
    assert envelope("m") is None


def test_a_table_that_is_no_news_is_not_even_read():
    demand = DemandState()
    demand.apply(DemandTable(5), "epoch")
    assert parse_demand({"version": 5, "epoch": "epoch", "rows": "nonsense"}, demand) is None
    with pytest.raises(BadHint):
        parse_demand({"version": 6, "epoch": "epoch", "rows": "nonsense"}, demand)


KEY = "ab" * 16
BAD_ANCHORS: list[Any] = [
    None,
    [],
    {},
    {"anchors": None},
    {"v": 2, "anchors": []},
    {"anchors": [[1, 2, KEY]]},
    {"anchors": [["1", 2, KEY, KEY]]},
    {"anchors": [[True, 2, KEY, KEY]]},
    {"anchors": [[-1, 2, KEY, KEY]]},
    {"anchors": [[1 << 31, 2, KEY, KEY]]},
    {"anchors": [[1, 4, KEY, KEY]]},
    {"anchors": [[1, 2, "xyz", KEY]]},
    {"anchors": [[1, 2, KEY, "ab" * 65]]},
    {"anchors": [[1, 2, "", KEY]]},
    {"anchors": [[0, 0, None, None]] * (ANCHORS_MAX + 1)},
]
BAD_TABLES: list[Any] = [
    None,
    {"rows": []},
    {"version": "1", "rows": []},
    {"version": -1, "rows": []},
    {"version": 1 << 62, "rows": []},
    {"version": 1, "epoch": 3, "rows": []},
    {"version": 1, "epoch": "e" * 129, "rows": []},
    {"version": 1, "rows": {}},
    {"version": 1, "rows": [[KEY]]},
    {"version": 1, "rows": [[None, 1.0]]},
    {"version": 1, "rows": [[KEY, "1"]]},
    {"version": 1, "rows": [[KEY, 10**400]]},
    {"version": 1, "rows": [[KEY, 1.0, -2]]},
    {"version": 1, "rows": [[KEY, 1.0, 0, 0]]},
    {"version": 1, "rows": [[KEY, 1.0]] * (ROWS_MAX + 1)},
]


@pytest.mark.parametrize("payload", BAD_ANCHORS)
def test_bad_anchors_are_refused_by_parser_and_schema(payload):
    refused(ANCHORS_ACTION, parse_anchors, payload)


@pytest.mark.parametrize("payload", BAD_TABLES)
def test_bad_demand_is_refused_by_parser_and_schema(payload):
    refused(DEMAND_ACTION, parse_demand, payload)


def refused(name: str, parse: Any, payload: Any) -> None:
    with pytest.raises(BadHint):
        parse(payload)
    action = {"action_id": "a", "action_type": name, "action_version": "1", "payload": payload}
    document = {"protocol_version": "1", "message_id": "m", "actions": [action]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(), jsonschema.Draft202012Validator)


def test_what_is_not_a_number_and_offsets_that_descend_are_refused_beyond_the_schema():
    with pytest.raises(BadHint, match="number"):
        parse_demand({"version": 1, "rows": [[KEY, float("nan")]]})
    with pytest.raises(BadHint, match="ascending"):
        parse_anchors({"anchors": [[5, 2, KEY, None], [4, 2, KEY, None]]})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=7), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["v", "anchors", "version", "epoch", "rows"]), anything))
def test_whatever_comes_a_parser_says_bad_hint_or_answers_with_what_can_be_written(payload):
    with contextlib.suppress(BadHint):
        found = parse_anchors(payload)
        assert parse_anchors(over_json(dump_anchors(found))) == found
    with contextlib.suppress(BadHint):
        table = parse_demand(payload)
        assert table is None or parse_demand(over_json(dump_demand(*table))) == table
