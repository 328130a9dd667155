"""Weights arrive in the backbone bit for bit, or the run stops with a message that says why they do not."""

import hashlib
import http.server
import os
import threading
import time
from urllib.error import URLError

import pytest
import torch
import torchvision
from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.logging import MMLogger
from mmengine.registry import WEIGHT_INITIALIZERS
from safetensors.torch import save_file

from mmrm.utils.errors import UserError, UserFileError, UserTypeError, UserValueError
from mmrm.weights import StrictPretrained, check_placement, find_checkpoint, load_backbone
from mmrm.weights.provenance import tensor_hash

from networks import Model, backbone, classifier, release, shake  # isort: skip

R18 = dict(type='ResNet', depth=18)
PVT = dict(type='PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2])


@pytest.fixture(scope='module')
def resnet():
    """Tensors of a ResNet-18 with a thousand classes, in torchvision's names, and of a RoI layer."""
    torch.manual_seed(1)
    model = shake(torchvision.models.resnet18())
    model.fc_roi = torch.nn.Linear(512, 1000)
    return model


@pytest.fixture(scope='module')
def pvt():
    torch.manual_seed(2)
    return shake(backbone(**PVT))


def bare(model):
    return {key: value for key, value in model.state_dict().items() if not key.startswith('fc')}


def mmpretrain_names(model, before=''):
    heads = {f'{before}head.{key}': value for key, value in model.state_dict().items() if key.startswith('fc')}
    return {**{f'{before}backbone.{key}': value for key, value in bare(model).items()}, **heads}


LAYOUTS = {
    'mmengine checkpoint': lambda model: dict(meta=dict(epoch=3), state_dict=mmpretrain_names(model), optimizer={}),
    'saved under DDP': lambda model: dict(state_dict=mmpretrain_names(model, 'module.')),
    'compiled backbone': lambda model: {f'backbone._orig_mod.{key}': value for key, value in bare(model).items()},
    'compiled and under DDP': lambda model: mmpretrain_names(model, '_orig_mod.module.'),
    'under DDP and compiled': lambda model: mmpretrain_names(model, 'module._orig_mod.'),
    'exported backbone': lambda model: dict(meta={}, state_dict=bare(model)),
    'torchvision': lambda model: {k: v for k, v in model.state_dict().items() if not k.startswith('fc_roi')},
    'no BN counters': lambda model: {k: v for k, v in bare(model).items() if not k.endswith('num_batches_tracked')},
    'detector': lambda model: {**mmpretrain_names(model), 'neck.weight': torch.ones(1), 'bbox_head.x': torch.ones(1)},
}


def assert_same(module, expected):
    found = module.state_dict()
    assert {key for key in found if not key.endswith('num_batches_tracked')} == {
        key for key in expected if not key.endswith('num_batches_tracked')
    }
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def initialised(config, file, **kwargs):
    """A model whose backbone comes from a file, initialised the way mmengine's runner does it."""
    model = Model(backbone(**config), dict(type='StrictPretrained', checkpoint=str(file), **kwargs))
    model.init_weights()
    return model.backbone


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_layout_arrives_bit_for_bit(layout, resnet, tmp_path):
    torch.save(LAYOUTS[layout](resnet), tmp_path / 'weights.pth')
    assert_same(
        initialised(R18, tmp_path / 'weights.pth'),
        {k: v for k, v in bare(resnet).items() if layout != 'no BN counters' or not k.endswith('num_batches_tracked')},
    )


def test_the_authors_release_arrives(resnet, tmp_path):
    assert_same(initialised(R18, release(resnet, tmp_path / 'release.pth')), bare(resnet))


def test_safetensors_arrive(resnet, tmp_path):
    save_file(mmpretrain_names(resnet), tmp_path / 'weights.safetensors')
    assert_same(initialised(R18, tmp_path / 'weights.safetensors'), bare(resnet))


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_resnets_of_all_toolboxes_are_filled(scope, resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    model = Model(backbone(scope, **R18), dict(type='StrictPretrained', checkpoint=str(tmp_path / 'weights.pth')))
    model.init_weights()
    # mmpretrain's own init_weights would set the last BN of every block to zero.
    assert_same(model.backbone, bare(resnet))


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'module.backbone.'])
def test_pvt_is_filled_although_mmdet_loads_it_in_its_own_way(prefix, pvt, tmp_path):
    torch.save(dict(state_dict={prefix + key: value for key, value in pvt.state_dict().items()}), tmp_path / 'pvt.pth')
    assert_same(initialised(PVT, tmp_path / 'pvt.pth'), pvt.state_dict())


def test_mmengines_own_way_would_have_failed_silently(pvt, tmp_path):
    """The reason for all this; if it ever fails, mmdet has mended its PVT."""
    tensors = {f'backbone.{key}': value for key, value in pvt.state_dict().items()}
    torch.save(dict(state_dict=tensors), tmp_path / 'pvt.pth')
    init_cfg = Config(dict(c=dict(type='Pretrained', checkpoint=str(tmp_path / 'pvt.pth'), prefix='backbone.'))).c
    model = Model(backbone(**PVT, init_cfg=init_cfg))
    model.init_weights()
    found = model.backbone.state_dict()
    assert not any(torch.equal(found[key], value) for key, value in pvt.state_dict().items())


def test_the_rest_of_the_model_is_initialised_as_ever(resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    init_cfg = [
        dict(type='StrictPretrained', checkpoint=str(tmp_path / 'weights.pth')),
        dict(type='Constant', val=3.0, override=dict(name='neck')),
    ]
    model = Model(backbone(**R18), init_cfg)
    model.init_weights()
    assert model.neck.weight.unique().tolist() == [3.0]
    assert_same(model.backbone, bare(resnet))


def test_ema_checkpoints_give_their_average(resnet, tmp_path):
    hook = EMAHook()
    hook.ema_model = torch.nn.Module()
    hook.ema_model.module = Model(shake(backbone(**R18)))
    hook.ema_model.register_buffer('steps', torch.tensor(9))
    averaged = {key: value.clone() for key, value in hook.ema_model.module.backbone.state_dict().items()}
    checkpoint = dict(state_dict=dict(Model(backbone(**R18)).state_dict()))
    hook.before_save_checkpoint(None, checkpoint)
    torch.save(checkpoint, tmp_path / 'ema.pth')
    assert_same(initialised(R18, tmp_path / 'ema.pth'), averaged)


def test_what_was_loaded_is_one_line_in_the_log(resnet, tmp_path, monkeypatch):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    lines, model = [], Model(backbone(**R18))
    monkeypatch.setattr(MMLogger.get_current_instance(), 'log', lambda level, message: lines.append(message))
    StrictPretrained(str(tmp_path / 'weights.pth'))(model)
    assert len(lines) == 1 and '\n' not in lines[0]
    for part in ('backbone <- ', 'weights.pth', '120 tensors', '11.19 M values', 'sha256 '):
        assert part in lines[0]


def test_hash_tells_weights_not_files(resnet, tmp_path):
    torch.save(LAYOUTS['mmengine checkpoint'](resnet), tmp_path / 'a.pth')
    torch.save(LAYOUTS['no BN counters'](resnet), tmp_path / 'b.pth')
    one, other = (load_backbone(backbone(**R18), tmp_path / name) for name in ('a.pth', 'b.pth'))
    assert one.sha256 == other.sha256
    changed = bare(resnet)
    changed['conv1.weight'] = changed['conv1.weight'] + 1e-6
    torch.save(changed, tmp_path / 'c.pth')
    assert load_backbone(backbone(**R18), tmp_path / 'c.pth').sha256 != one.sha256


def test_half_precision_becomes_the_backbones_own(resnet, tmp_path):
    torch.save(
        {key: value.half() if value.is_floating_point() else value for key, value in bare(resnet).items()},
        tmp_path / 'half.pth',
    )
    module = backbone(**R18)
    loaded = load_backbone(module, tmp_path / 'half.pth')
    assert module.conv1.weight.dtype == torch.float32
    assert torch.equal(module.conv1.weight, resnet.conv1.weight.half().float())
    assert loaded.sha256 == tensor_hash(module.state_dict())


# ------------------------------------------------------------------------------------------------------- what is wrong
def torchvision_resnet(depth):
    return getattr(torchvision.models, f'resnet{depth}')().state_dict()


def shape_changed():
    tensors = torchvision_resnet(18)
    tensors['layer3.1.conv2.weight'] = tensors['layer3.1.conv2.weight'][:, :3]
    return tensors


def without(key):
    return {k: v for k, v in torchvision_resnet(18).items() if k != key}


def not_finite():
    tensors = torchvision_resnet(18)
    tensors['layer2.0.bn1.running_mean'][3] = float('nan')
    return tensors


WRONG = {
    'another depth': (
        lambda: torchvision_resnet(34),
        ['looks like a ResNet-34', 'backbone is a ResNet-18', 'layer1.2.conv1'],
    ),
    'bottlenecks': (lambda: torchvision_resnet(50), ['looks like a ResNet-50', 'tensors of another shape']),
    'deep stem': (
        lambda: classifier(dict(type='ResNetV1c', depth=18), in_channels=512).state_dict(),
        ['looks like a ResNet-18 with a deep stem', 'not in the file: conv1.weight'],
    ),
    "mmseg's deep stem": (
        lambda: backbone('mmseg', type='ResNetV1c', depth=18).state_dict(),
        ['looks like a ResNet-18 with a deep stem', 'not in the file: conv1.weight'],
    ),
    'PVTv2 into ResNet': (
        lambda: backbone(**PVT).state_dict(),
        ['looks like a PVTv2-B1', 'layers.0.0.projection.weight'],
    ),
    'one tensor missing': (
        lambda: without('layer4.1.bn2.bias'),
        ['1 of 120 tensors not in the file: layer4.1.bn2.bias'],
    ),
    'one left over': (
        lambda: {**torchvision_resnet(18), 'layer4.1.extra.weight': torch.ones(2)},
        ['not in backbone: layer4.1.extra.weight'],
    ),
    'another shape': (shape_changed, ['layer3.1.conv2.weight is (256, 3, 3, 3) instead of (256, 256, 3, 3)']),
    'another prefix': (
        lambda: {f'encoder.{k}': v for k, v in torchvision_resnet(18).items()},
        ["behind the prefix 'encoder.'", "prefix='encoder.'"],
    ),
    'no backbone': (
        lambda: dict(state_dict={'head.fc.weight': torch.ones(5, 4), 'head.fc.bias': torch.ones(5)}),
        ['no backbone in it', 'head.'],
    ),
    'no tensors': (lambda: dict(state_dict=dict(epoch=3)), ['no tensor among its entries (epoch)']),
    'a list': (lambda: [torch.ones(2)], ['it is a list, not a dictionary of tensors']),
    'not finite': (not_finite, ['infinite values or NaN: layer2.0.bn1.running_mean']),
}


@pytest.mark.parametrize('problem', WRONG)
def test_wrong_weights_stop_the_run_and_say_why(problem, tmp_path):
    make, expected = WRONG[problem]
    torch.save(make(), tmp_path / 'wrong.pth')
    module = backbone(**R18)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = Model(module, dict(type='StrictPretrained', checkpoint=str(tmp_path / 'wrong.pth')))
    with pytest.raises(UserFileError) as caught:
        model.init_weights()
    for part in [*expected, 'wrong.pth']:
        assert part in str(caught.value)
    assert_same(module, before)


FILES = {
    'web page': (b'<!DOCTYPE html><html><body>404 Not Found</body></html>', 'web page'),
    'empty': (b'', 'is empty'),
    'random bytes': (bytes(range(255, 155, -1)) * 30, 'not a checkpoint'),
}


@pytest.mark.parametrize('problem', FILES)
def test_files_that_are_no_weights(problem, tmp_path):
    content, expected = FILES[problem]
    (tmp_path / 'file.pth').write_bytes(content)
    with pytest.raises(UserFileError, match=expected):
        initialised(R18, tmp_path / 'file.pth')


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_truncated_files(suffix, resnet, tmp_path):
    whole = tmp_path / f'whole{suffix}'
    torch.save(bare(resnet), whole) if suffix == '.pth' else save_file(bare(resnet), whole)
    (tmp_path / f'cut{suffix}').write_bytes(whole.read_bytes()[:100_000])
    with pytest.raises(UserFileError, match='truncated'):
        initialised(R18, tmp_path / f'cut{suffix}')


def test_a_file_that_may_not_be_read(resnet, tmp_path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise PermissionError(13, 'Permission denied')

    torch.save(bare(resnet), tmp_path / 'secret.pth')
    monkeypatch.setattr('builtins.open', forbidden)  # the superuser may read whatever its mode says
    with pytest.raises(UserFileError, match='no permission'):
        initialised(R18, tmp_path / 'secret.pth')


@pytest.mark.parametrize('path', ['', '  '])
def test_an_empty_path_is_named_and_the_way_to_give_one(path):
    with pytest.raises(UserFileError, match=r'empty.*MMRM_BACKBONE.*model\.init_cfg\.checkpoint'):
        initialised(R18, path)


def test_a_missing_file_is_named_and_the_way_to_give_another(tmp_path):
    with pytest.raises(UserFileError, match=r'nowhere\.pth do not exist.*MMRM_BACKBONE'):
        initialised(R18, tmp_path / 'nowhere.pth')


def test_none_is_no_path():
    with pytest.raises(UserTypeError, match='checkpoint=None'):
        StrictPretrained(None)(Model(backbone(**R18)))


def test_a_prefix_can_be_given(resnet, tmp_path):
    torch.save({f'teacher.backbone.{k}': v for k, v in bare(resnet).items()}, tmp_path / 'teacher.pth')
    assert_same(initialised(R18, tmp_path / 'teacher.pth', prefix='teacher.backbone.'), bare(resnet))


def test_a_classifier_behind_a_prefix_gives_its_backbone(resnet, tmp_path):
    torch.save({f'module.encoder_q.{k}': v for k, v in resnet.state_dict().items()}, tmp_path / 'moco.pth')
    assert 'fc.weight' in resnet.state_dict()
    assert_same(initialised(R18, tmp_path / 'moco.pth', prefix='module.encoder_q.'), bare(resnet))


def test_a_prefix_that_the_file_lacks_is_an_error(resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'bare.pth')
    with pytest.raises(UserFileError, match=r"no backbone in it under prefix='backbone\.'.*begin with bn1\., conv1\."):
        initialised(R18, tmp_path / 'bare.pth', prefix='backbone.')


def test_a_backbone_that_ends_early_needs_to_say_so(resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    early = dict(R18, num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2,))
    with pytest.raises(UserFileError, match=r'not in backbone: layer4\.0\.conv1\.weight'):
        initialised(early, tmp_path / 'weights.pth')
    found = initialised(early, tmp_path / 'weights.pth', unused=('layer4.',))
    assert torch.equal(found.layer3[0].conv1.weight, resnet.layer3[0].conv1.weight)


@pytest.mark.parametrize(
    'kwargs, error',
    [(dict(prefix=''), UserValueError), (dict(prefix=3), UserValueError), (dict(unused='layer4.'), UserTypeError)],
)
def test_arguments_are_checked(kwargs, error):
    with pytest.raises(error, match=next(iter(kwargs))):
        StrictPretrained('weights.pth', **kwargs)


def test_two_sources_of_weights_are_an_error(resnet, tmp_path):
    """The habit of ``--cfg-options model.backbone.init_cfg.checkpoint=...`` must not end in other weights."""
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    model = Model(backbone(**R18), dict(type='StrictPretrained', checkpoint=str(tmp_path / 'weights.pth')))
    model.backbone.init_cfg = dict(checkpoint='other.pth')
    with pytest.raises(UserValueError, match=r'two sources of weights.*other\.pth.*mmseg: model\.pretrained=None'):
        model.init_weights()


def test_the_backbones_own_init_cfg_works_where_its_class_lets_it(resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    init_cfg = dict(type='StrictPretrained', checkpoint=str(tmp_path / 'weights.pth'))
    model = Model(backbone(**R18, init_cfg=init_cfg))
    check_placement(model)
    model.init_weights()
    assert_same(model.backbone, bare(resnet))


def test_other_initialisations_come_before_it(resnet, tmp_path):
    torch.save(bare(resnet), tmp_path / 'weights.pth')
    strict = dict(type='StrictPretrained', checkpoint=str(tmp_path / 'weights.pth'))
    other = dict(type='Normal', layer='Conv2d', std=0.5)
    model = Model(backbone(**R18), [other, strict])
    check_placement(model)
    model.init_weights()
    assert_same(model.backbone, bare(resnet))
    assert model.neck.weight.std() > 0.2
    with pytest.raises(UserValueError, match=r'must be the last of model\.init_cfg: .*\(Normal\) would overwrite'):
        check_placement(Model(backbone(**R18), [strict, other]))


@pytest.mark.parametrize('scope, config', [('mmdet', PVT), ('mmpretrain', R18)])
def test_a_backbone_that_would_not_run_it_is_reported(scope, config):
    init_cfg = dict(type='StrictPretrained', checkpoint='weights.pth')
    model = Model(backbone(scope, **config, init_cfg=init_cfg))
    with pytest.raises(UserValueError, match=r'move it to model\.init_cfg'):
        check_placement(model)


def test_a_part_that_the_model_lacks_is_named():
    with pytest.raises(UserValueError, match="module='encoder'"):
        StrictPretrained('weights.pth', module='encoder')(Model(backbone(**R18)))


def test_it_is_registered_for_init_cfg():
    assert WEIGHT_INITIALIZERS.get('StrictPretrained') is StrictPretrained


# -------------------------------------------------------------------------------------------------------- which file
def test_a_runs_folder_stands_for_its_best_checkpoint(tmp_path):
    for name in ('epoch_1.pth', 'epoch_2.pth', 'best_accuracy_top1_epoch_1.pth'):
        (tmp_path / name).touch()
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    assert find_checkpoint(tmp_path).name == 'best_accuracy_top1_epoch_1.pth'


def test_without_a_best_one_for_its_last_also_when_it_was_moved(tmp_path):
    (tmp_path / 'epoch_2.pth').touch()
    (tmp_path / 'last_checkpoint').write_text('/somewhere/else/epoch_2.pth\n')
    assert find_checkpoint(tmp_path) == tmp_path / 'epoch_2.pth'


def test_a_copy_stands_for_itself_also_while_the_original_is_there(tmp_path):
    for run in ('original', 'copy'):
        (tmp_path / run).mkdir()
        (tmp_path / run / 'epoch_2.pth').touch()
        (tmp_path / run / 'last_checkpoint').write_text(str(tmp_path / 'original' / 'epoch_2.pth'))
        assert find_checkpoint(tmp_path / run) == tmp_path / run / 'epoch_2.pth'


@pytest.mark.parametrize('note', [None, ''])
def test_a_run_killed_before_it_noted_its_last_checkpoint_stands_for_the_newest(note, tmp_path):
    for age, name in enumerate(('epoch_10.pth', 'epoch_9.pth')):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    if note is not None:
        (tmp_path / 'last_checkpoint').write_text(note)
    assert find_checkpoint(tmp_path) == tmp_path / 'epoch_10.pth'


@pytest.mark.parametrize(
    'files, message',
    [
        (['best_a_epoch_1.pth', 'best_b_epoch_1.pth'], '2 best checkpoints, name one: best_a'),
        (['seed0/best_a_epoch_1.pth', 'seed1/best_a_epoch_1.pth'], 'several runs, name one: seed0, seed1'),
        (['seed0/epoch_1.pth', 'seed1/epoch_1.pth', 'seed2/notes.txt'], 'several runs, name one: seed0, seed1\\.'),
        (['notes.txt'], 'folder without a checkpoint'),
    ],
)
def test_a_folder_that_does_not_say_which(files, message, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UserFileError, match=message):
        find_checkpoint(tmp_path)


def test_a_last_checkpoint_that_is_gone(tmp_path):
    (tmp_path / 'last_checkpoint').write_text('epoch_9.pth')
    with pytest.raises(UserFileError, match=r'names epoch_9\.pth, which is not there'):
        find_checkpoint(tmp_path)


def test_a_relative_path_is_found_from_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / 'home' / 'work_dirs').mkdir(parents=True)
    (tmp_path / 'home' / 'work_dirs' / 'x.pth').touch()
    monkeypatch.setattr('mmrm.utils.paths.home', lambda: tmp_path / 'home')
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint('work_dirs/x.pth') == tmp_path / 'home' / 'work_dirs' / 'x.pth'


def test_torchvisions_address_uses_the_file_that_mmdets_rows_use(resnet, tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    folder = tmp_path / 'hub' / 'checkpoints'
    folder.mkdir(parents=True)
    torch.save(LAYOUTS['torchvision'](resnet), folder / 'resnet18-f37072fd.pth')
    assert_same(initialised(R18, 'torchvision://resnet18'), bare(resnet))
    (folder / 'resnet50-0676ba61.pth').touch()
    assert find_checkpoint('torchvision://resnet50').name == 'resnet50-0676ba61.pth'


def test_a_download_that_fails_says_what_to_do(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise URLError('no route to host')

    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr('mmrm.weights.strict.urlopen', refuse)
    with pytest.raises(UserFileError, match=r'resnet50-0676ba61\.pth could not be downloaded.*no route.*MMRM_BACKBONE'):
        initialised(R18, 'torchvision://resnet50')


def test_two_addresses_with_the_same_last_name_are_two_files(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    (tmp_path / 'hub' / 'checkpoints').mkdir(parents=True)
    monkeypatch.setattr('mmrm.weights.strict.fetch', lambda url, file, sha256: file.write_text(url))
    for host in ('one', 'other', 'one'):
        url = f'https://{host}.invalid/backbone.pth'
        assert find_checkpoint(url).read_text() == url


@pytest.mark.parametrize('name, hash', [('resnet50-0676ba61.pth', '0676ba61'), ('rm_resnet50-20230115.pth', '')])
def test_a_date_in_a_file_s_name_is_no_checksum(name, hash, tmp_path, monkeypatch):
    given = []
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr('mmrm.weights.strict.fetch', lambda url, file, sha256: given.append(sha256))
    find_checkpoint(f'https://one.invalid/{name}')
    assert given == [hash]


CONTENT = bytes(range(256)) * 8192


class Site(http.server.BaseHTTPRequestHandler):
    """Gives CONTENT; under ``/half/`` and ``/half-chunked/`` it breaks off in the middle."""

    protocol_version = 'HTTP/1.1'

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

    def log_message(self, *args):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The address of a server on this host."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()
        thread.join()


def downloaded(tmp_path):
    return sorted(path.name for path in (tmp_path / 'hub' / 'checkpoints').iterdir())


def test_a_download_is_the_file(site, tmp_path):
    stamp = hashlib.sha256(CONTENT).hexdigest()[:8]
    file = find_checkpoint(f'{site}/net-{stamp}.pth')
    assert file.read_bytes() == CONTENT and downloaded(tmp_path) == [f'net-{stamp}.pth']


@pytest.mark.parametrize(
    'path, told',
    [
        ('half/net.pth', f'the connection ended after {len(CONTENT) // 2} of {len(CONTENT)} bytes'),
        ('half-chunked/net.pth', 'IncompleteRead'),
        ('net-abcdef01.pth', 'SHA-256 should begin with abcdef01'),
    ],
)
def test_half_a_download_or_another_file_is_not_kept(path, told, site, tmp_path):
    with pytest.raises(UserFileError, match=f'could not be downloaded.*{told}'):
        find_checkpoint(f'{site}/{path}')
    assert downloaded(tmp_path) == []


def test_what_a_killed_download_left_is_removed_by_the_next_and_that_of_another_process_is_not(site, tmp_path):
    folder = tmp_path / 'hub' / 'checkpoints'
    folder.mkdir(parents=True)
    file = find_checkpoint(f'{site}/net.pth')
    file.unlink()
    mine = tmp_path / 'mine'
    mine.write_text('mine')
    for name, age in (('left', 7200), ('under_way', 10)):
        (folder / f'.{file.name}.{name}').write_bytes(b'half')
        os.utime(folder / f'.{file.name}.{name}', (time.time() - age,) * 2)
    (folder / f'.{file.name}.link').symlink_to(mine)
    os.utime(folder / f'.{file.name}.link', (0, 0), follow_symlinks=False)
    assert find_checkpoint(f'{site}/net.pth').read_bytes() == CONTENT
    assert downloaded(tmp_path) == sorted([file.name, f'.{file.name}.under_way']) and mine.read_text() == 'mine'


@pytest.mark.parametrize('address', ['torchvision://resnet51', 's3://bucket/x.pth'])
def test_unknown_addresses(address):
    with pytest.raises(UserError, match=address):
        find_checkpoint(address)
