import pytest
from sqlalchemy import make_url

from thunder_tune.errors import StorageError
from thunder_tune.storage.location import locate, shown


def test_a_path_becomes_an_sqlite_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("a.db", "./a.db", str(tmp_path / "a.db"), "sqlite:///a.db"):
        assert str(locate(text)) == f"sqlite:///{tmp_path}/a.db"


def test_the_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert locate("~/a.db").database == "/somewhere/a.db"


@pytest.mark.parametrize("text", ["sqlite://", "sqlite:///:memory:", ":memory:"])
def test_memory_stays_memory(text):
    assert locate(text).database in (None, "", ":memory:")


def test_other_urls_are_left_alone():
    url = "postgresql+psycopg://me:pw@host:1/name?sslmode=require"
    assert locate(url).render_as_string(hide_password=False) == url


def test_the_environment_decides_where_nothing_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("THUNDER_TUNE_STORAGE", str(tmp_path / "env.db"))
    assert locate().database == str(tmp_path / "env.db")
    assert locate("/given.db").database == "/given.db"


@pytest.mark.parametrize("variable", ["", None])
def test_the_default_lies_in_the_data_folder(tmp_path, monkeypatch, variable):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("THUNDER_TUNE_STORAGE", raising=False)
    if variable is not None:
        monkeypatch.setenv("THUNDER_TUNE_STORAGE", variable)
    assert locate().database == str(tmp_path / "thunder-tune" / "thunder_tune.db")
    assert (tmp_path / "thunder-tune").is_dir()


def test_a_data_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("THUNDER_TUNE_STORAGE", raising=False)
    with pytest.raises(StorageError, match=r"file/thunder-tune cannot be created.*--storage"):
        locate()


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_storage_is_refused(text):
    with pytest.raises(StorageError, match="give a path or a URL"):
        locate(text)


@pytest.mark.parametrize("text", ["://", "postgresql://me:secret@host:port/x"])
def test_what_is_no_url_is_refused_without_its_password(text):
    with pytest.raises(StorageError, match="not a database URL: use sqlite:///PATH") as error:
        locate(text)
    assert "secret" not in str(error.value)


def test_passwords_are_not_shown():
    text = shown(make_url("postgresql+psycopg://me:secret@host/x?password=secret&sslmode=require"))
    assert "secret" not in text
    assert "sslmode=require" in text
