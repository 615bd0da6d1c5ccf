"""Records over the process line: what is sent arrives, and nothing else is taken for a record."""

import pickle
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.messages.outputs import (
    CallResult,
    CoreOutput,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineDead,
    FinishReason,
    RequestLedger,
    SchedulerStats,
    TokenLogprobs,
)
from headrace.messages.requests import (
    AbortRequests,
    Call,
    CoreInput,
    EngineCoreRequest,
    GetDebugState,
    ResetPrefixCache,
    Shutdown,
)
from headrace.sampling_params import SamplingParams

REQUEST = EngineCoreRequest(
    request_id="a-1",
    prompt_token_ids=[0, 1, 2**31 - 1],
    sampling_params=SamplingParams(
        temperature=0.5, seed=7, logit_bias={3: -100.0}, max_tokens=None, logprobs=2,
        extra_args={"deep": [1, {"x": None}]},
    ),
    eos_token_id=2,
    stop_token_ids=[5, 6],
    arrival_time=time.time(),
    priority=-3,
    cache_salt="salt ü",
)  # fmt: skip
INPUTS = [
    REQUEST,
    AbortRequests(["a", "b"]),
    Call(1, ResetPrefixCache()),
    Call(2, GetDebugState()),
    Shutdown(1.5),
]
OUTPUTS = [
    EngineCoreOutputs(
        [
            EngineCoreOutput("a", [1]),
            EngineCoreOutput(
                "b", [2, 3], FinishReason.STOP, 3, [TokenLogprobs([2, 9], [-0.1, -2.0], 1)],
                [TokenLogprobs([1], [-1.0], 4)], 16, 1, RequestLedger(1.0, 2.0, 3.0, 4.0),
            ),
            EngineCoreOutput("c", [], FinishReason.ERROR, error="so it goes"),
        ],
        SchedulerStats(num_running=2, num_blocks=9),
        12.5,
        4,
    ),
    CallResult(1, True),
    CallResult(2, {"requests": 0}, None),
    CallResult(3, None, "no"),
    EngineDead("out of memory"),
]  # fmt: skip


@pytest.mark.parametrize("record", INPUTS, ids=lambda r: type(r).__name__)
def test_input_record_sent_arrives_equal(record: object) -> None:
    decoder: RecordDecoder[CoreInput] = RecordDecoder(CoreInput, "a test")
    assert decoder.decode(RecordEncoder().encode(record)) == record


@pytest.mark.parametrize("record", OUTPUTS, ids=lambda r: type(r).__name__)
def test_output_record_sent_arrives_equal(record: object) -> None:
    decoder: RecordDecoder[CoreOutput] = RecordDecoder(CoreOutput, "a test")
    assert decoder.decode(RecordEncoder().encode(record)) == record


def _with(field: int, value: object) -> bytes:
    fields = msgspec.msgpack.decode(RecordEncoder().encode(REQUEST))
    fields[field] = value
    return msgspec.msgpack.encode(fields)


BAD = {
    "empty": b"",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "pickle": pickle.dumps({"x": print}),
    "unknown tag": msgspec.msgpack.encode(["run", "rm"]),
    "output as input": RecordEncoder().encode(EngineDead("x")),
    "field too many": RecordEncoder().encode(AbortRequests(["a"])).replace(b"\x92", b"\x93", 1)
    + b"\x01",
    "wrong type": _with(2, ["0", 1]),
    "too large": _with(2, [2**64 - 1, 1.5]),
    "unknown parameter": _with(3, {"temperature": 1.0, "exec": "x"}),
    "bad parameter": _with(3, {"temperature": -1.0}),
    "deep": b"\x91" * 100_000,
    "huge length": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("frame", BAD.values(), ids=BAD.keys())
def test_decode_bytes_that_are_no_record_drops_them_with_a_line(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    decoder: RecordDecoder[CoreInput] = RecordDecoder(CoreInput, "a test")
    assert decoder.decode(frame) is None
    [line] = caplog.records
    assert "from a test" in line.getMessage()


@given(st.binary(max_size=200))
def test_decode_random_bytes_never_raises(frame: bytes) -> None:
    decoder: RecordDecoder[CoreInput] = RecordDecoder(CoreInput, "a test")
    record = decoder.decode(frame)
    assert record is None or RecordEncoder().encode(record)
