"""What the tests of the entry points share."""

import pytest


@pytest.fixture
def error(capsys):
    """Call an entry point that must end with exit code 2; returns its one line of error."""

    def call(function, *argv):
        with pytest.raises(SystemExit) as stop:
            function([str(arg) for arg in argv])
        assert stop.value.code == 2
        text = capsys.readouterr().err
        assert 'Traceback' not in text
        lines = [line for line in text.splitlines() if line.startswith('error:')]
        assert len(lines) == 1
        return lines[0]

    return call
