from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.values.job import Progress
from thunder_tune.workers.protocol import (
    MAX_FRAME_BYTES,
    Channel,
    FrameReader,
    Message,
    ProtocolError,
    encode,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
messages = st.builds(
    Message,
    kind=st.sampled_from(["describe", "measure", "compare", "progress", "result", "failure"]),
    body=st.dictionaries(st.text(max_size=8), values, max_size=4),
    deadline=st.none() | st.floats(0, 1e9),
    spent=st.booleans(),
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.lists(messages, max_size=5), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(sent, data):
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, received = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        while (message := reader.next()) is not None:
            received.append(message)
    assert received == sent
    assert not reader.is_inside_frame


def test_a_value_arrives_as_it_was(ends):
    progress = Progress(phase="compile", subject="torch.compile:max-autotune ü")
    Channel(ends[0]).send(Message.of("progress", progress))
    message = Channel(ends[1]).receive(1.0)
    assert message is not None
    assert message.read(Progress) == progress


def test_a_closed_end_between_messages_is_the_end(ends):
    ends[0].close()
    with pytest.raises(EOFError, match="closed"):
        Channel(ends[1]).receive(1.0)


def test_a_closed_end_inside_a_frame_is_an_error(ends):
    ends[0].sendall(encode(Message(kind="result"))[:-1])
    ends[0].close()
    channel = Channel(ends[1])
    assert channel.receive(1.0) is None
    with pytest.raises(ProtocolError, match="ends inside a frame"):
        channel.receive(1.0)


def test_nothing_to_read_is_no_message(ends):
    assert Channel(ends[1]).receive(0.0) is None


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe", "damaged frame"),
        (b"[]", "not a valid Message"),
        (b'{"kind":"dance","body":{}}', "kind"),
    ],
)
def test_a_damaged_frame_is_an_error(payload, says):
    reader = FrameReader()
    reader.feed(struct.pack(">I", len(payload)) + payload)
    with pytest.raises(ProtocolError, match=says):
        reader.next()


def test_an_oversized_frame_is_refused_before_it_is_read():
    reader = FrameReader()
    reader.feed(struct.pack(">I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match="at most"):
        reader.next()


def test_an_oversized_message_is_not_sent():
    with pytest.raises(ProtocolError, match="at most"):
        encode(Message(kind="result", body={"text": "x" * MAX_FRAME_BYTES}))


def test_a_body_of_another_type_is_an_error():
    with pytest.raises(ProtocolError, match="damaged message 'progress'"):
        Message(kind="progress", body={"phase": 3}).read(Progress)
