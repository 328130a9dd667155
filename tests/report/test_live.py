"""The live report: it answers two addresses to those who may ask, and follows the logs."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mmrm.report import live
from mmrm.utils import paths
from mmrm.utils.errors import UserFileError

from run_logs import epochs, settings, write_run, write_session  # isort: skip


@pytest.fixture
def runs(tmp_path):
    write_session(tmp_path / 'runs' / 'rm', '20260101_000000', epochs(1, [10.0, 20.0]), settings(5))
    (tmp_path / 'runs' / 'rm' / '20260101_000000' / '20260101_000000.log').write_text('first line\nlast line\n')
    (tmp_path / 'secret.txt').write_text('secret')
    return tmp_path / 'runs'


@pytest.fixture
def start(runs, monkeypatch):
    """Start a server; returns a function that asks it."""
    servers = []
    monkeypatch.setattr(live, 'EVERY', 0.0)

    def serve(host='127.0.0.1'):
        server = live.Server(live.State([runs]), host)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.02), daemon=True).start()
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, path='/', method='GET', **headers):
    connection = http.client.HTTPConnection('127.0.0.1', server.server_address[1], timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


def test_the_page_and_its_state_are_served(start):
    server = start()
    status, html, answer = ask(server)
    assert status == 200 and 'connect-src &#39;self&#39;' in html and answer.headers['X-Frame-Options'] == 'DENY'
    status, text, _ = ask(server, '/state')
    now = json.loads(text)['now']
    assert now['runs'][0]['lines'] == ['first line', 'last line'] and now['runs'][0]['progress'] == 0.4
    assert now['runs'][0]['told'].startswith('2 of 5 epochs') and now['load']


def test_a_log_that_grows_is_a_new_revision_and_one_that_does_not_is_not(start, runs):
    server = start()
    first = json.loads(ask(server, '/state')[1])
    assert 'page' in first
    assert 'page' not in json.loads(ask(server, f'/state?revision={first["revision"]}')[1])
    with open(runs / 'rm' / '20260101_000000' / 'vis_data' / 'scalars.json', 'a') as log:
        log.write(json.dumps({'accuracy/top1': 33.25, 'step': 3}) + '\n' + '{"half')
    second = json.loads(ask(server, f'/state?revision={first["revision"]}')[1])
    assert second['revision'] != first['revision'] and '33.25' in second['page']['fragments']['summary']
    assert second['page']['data']['tasks'][0]['runs'][0]['val']['keys']['accuracy/top1']['y'][-1] == 33.25


@pytest.mark.parametrize(
    'path',
    ['/../secret.txt', '/secret.txt', '/rm/20260101_000000/20260101_000000.log', '//etc/passwd', '/%2e%2e/secret.txt'],
)
def test_no_file_is_served(start, path):
    status, text, _ = ask(start(), path)
    assert status == 404 and 'secret' not in text and 'line' not in text


@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE', 'HEAD', 'OPTIONS'])
def test_only_get_is_answered(start, method):
    assert ask(start(), '/', method)[0] == 501


def test_a_request_by_another_name_is_refused(start):
    server = start()
    assert ask(server, Host='evil.example')[0] == 421
    assert ask(server, Host=f'localhost:{server.server_address[1]}')[0] == 200


def test_another_address_needs_the_token(start):
    server = start('0.0.0.0')
    assert len(server.token) >= 24 and server.token in server.url
    assert ask(server)[0] == 403 and ask(server, '/?token=wrong')[0] == 403 and ask(server, '/state')[0] == 403
    assert ask(server, f'/?token={server.token}')[0] == 200 and ask(server, f'/state?token={server.token}')[0] == 200
    assert ask(server, f'/?token={server.token}%C3%A9')[0] == 403


def test_runs_that_vanish_leave_the_last_page(start, runs):
    server = start()
    assert ask(server)[0] == 200
    runs.rename(runs.with_name('moved'))
    assert ask(server)[0] == 200 and ask(server, '/state')[0] == 200


def test_a_port_that_is_taken_is_a_mistake_of_the_user(start, runs):
    server = start()
    with pytest.raises(UserFileError, match=r'cannot listen at 127\.0\.0\.1'):
        live.Server(live.State([runs]), '127.0.0.1', server.server_address[1])


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(tmp_path):
    write_run(tmp_path / 'run', [10.0])
    tool = paths.shipped() / 'tools' / 'report.py'
    command = [sys.executable, str(tool), str(tmp_path / 'run'), '--serve', '--port', '0']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        url = process.stdout.readline().strip()
        assert url.startswith('http://127.0.0.1:')
        connection = http.client.HTTPConnection('127.0.0.1', int(url.rstrip('/').rpartition(':')[2]), timeout=20)
        connection.request('GET', '/')
        assert connection.getresponse().status == 200
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0 and 'ended' in out and 'Traceback' not in err
    finally:
        process.kill()
