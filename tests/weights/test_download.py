"""Weights at an address are downloaded whole, once, and only if they are the file that its name promises."""

import hashlib
import http.server
import threading
from unittest.mock import Mock
from urllib.error import URLError

import pytest

from mmrm.utils.errors import UserError, UserFileError
from mmrm.weights import find_checkpoint

CONTENT = bytes(range(256)) * 8192


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """torch's own folder of downloads."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    folder = tmp_path / 'hub' / 'checkpoints'
    folder.mkdir(parents=True)
    return folder


def test_torchvisions_address_is_the_file_that_mmdets_rows_use_and_a_failure_says_what_to_do(cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise URLError('no route to host')

    monkeypatch.setattr('mmrm.weights.download.urlopen', refuse)
    with pytest.raises(UserFileError, match=r'resnet50-0676ba61\.pth could not be downloaded.*no route.*by hand'):
        find_checkpoint('torchvision://resnet50')
    (cache / 'resnet50-0676ba61.pth').touch()
    assert find_checkpoint('torchvision://resnet50') == cache / 'resnet50-0676ba61.pth'
    for address in ('torchvision://resnet51', 's3://bucket/x.pth'):
        with pytest.raises(UserError, match=address):
            find_checkpoint(address)


def test_a_hash_in_a_name_is_compared_and_a_date_is_not(monkeypatch):
    fetched = []
    monkeypatch.setattr('mmrm.weights.download.fetch', lambda url, file, sha256: fetched.append((file.name, sha256)))
    for name in ('resnet50-0676ba61.pth', 'rm_resnet50-20230115.pth'):
        for host in ('one', 'other'):
            find_checkpoint(f'https://{host}.invalid/{name}')
    assert [sha256 for _, sha256 in fetched] == ['0676ba61', '0676ba61', '', '']
    assert fetched[2][0] != fetched[3][0]  # two addresses with the same last name are two files


class Site(http.server.BaseHTTPRequestHandler):
    """Gives CONTENT; under ``/half/`` and ``/half-chunked/`` it breaks off in the middle."""

    protocol_version = 'HTTP/1.1'
    log_message = Mock()

    def do_GET(self):
        self.send_response(200)
        sent = CONTENT[: len(CONTENT) // 2] if 'half' in self.path else CONTENT
        if 'chunked' in self.path:
            self.send_header('Transfer-Encoding', 'chunked')
            sent = b'%x\r\n%b\r\n' % (len(CONTENT), sent)
        else:
            self.send_header('Content-Length', str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(sent)
        self.close_connection = True


@pytest.fixture(scope='module')
def site():
    """The address of a server on this host."""
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Site) as server:
        threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.05)).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.parametrize(
    'path, message',
    [
        ('half/net.pth', f'the connection ended after {len(CONTENT) // 2} of {len(CONTENT)} bytes'),
        ('half-chunked/net.pth', 'IncompleteRead'),
        ('net-abcdef01.pth', 'SHA-256 should begin with abcdef01'),
    ],
)
def test_half_a_download_or_another_file_is_not_kept(path, message, site, cache):
    with pytest.raises(UserFileError, match=f'could not be downloaded.*{message}'):
        find_checkpoint(f'{site}/{path}')
    assert list(cache.iterdir()) == []


def test_a_download_is_the_file(site, cache):
    name = f'net-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth'
    assert find_checkpoint(f'{site}/{name}').read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == [name]
