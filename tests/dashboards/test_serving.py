from __future__ import annotations

import socket

import pytest

from thunder_tune.dashboards import serving
from thunder_tune.errors import InputError


def test_a_taken_port_is_told_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"cannot serve at 127\.0\.0\.1.*--port"):
            serving.bind("127.0.0.1", taken.getsockname()[1])


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(InputError, match=r"cannot serve at 192\.0\.2\.1:0"):
        serving.bind("192.0.2.1", 0)


def test_any_free_port_can_be_had():
    with serving.bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_this_machine_alone_needs_no_token():
    assert serving.token_for("127.0.0.1", None) is None
    assert serving.token_for("127.0.0.1", "x" * 16) == "x" * 16


def test_the_network_needs_a_token():
    first, second = (serving.token_for("0.0.0.0", None) for _ in range(2))
    assert first
    assert first != second
    assert len(first) >= 32


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "ü" * 20, "x" * 16 + "\n"])
def test_a_weak_token_is_refused(token: str):
    with pytest.raises(InputError, match="at least 16 characters"):
        serving.token_for("0.0.0.0", token)


@pytest.mark.parametrize(
    ("host", "token", "address"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:80/"),
        ("::1", None, "http://[::1]:80/"),
        ("0.0.0.0", "secret", f"http://{socket.gethostname()}:80/?token=secret"),
        ("gpu", "secret", "http://gpu:80/?token=secret"),
    ],
)
def test_the_address_can_be_opened(host: str, token: str | None, address: str):
    assert serving.address(host, 80, token) == address
