import pytest

from placement.cli import main as cli


@pytest.fixture
def assert_refused(capsys, tmp_path):
    """Checks that `mltcp-placement jobs` refuses a trace with such content by one line that names the file."""

    def check(content, message, *arguments):
        path = tmp_path / "bad.csv"
        path.write_text(content)
        status = cli.main(["jobs", *arguments, "--trace", str(path)])
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{path}{message}" in err

    return check
