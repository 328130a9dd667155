"""Weights arrive in the backbone bit for bit, or the run stops with a message that says why they do not."""

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.logging import MMLogger
from safetensors.torch import save_file

from mmrm.utils.errors import UserFileError, UserTypeError, UserValueError
from mmrm.weights import StrictPretrained, check_placement
from mmrm.weights.provenance import tensor_hash
from mmrm.weights.strict import UNUSED_IN_TEST, load_weights

from networks import Model, backbone, classifier, narrow_resnet, release, shake  # isort: skip

WIDTH = dict(stem_channels=8, base_channels=8)
R18 = dict(type='ResNet', depth=18, **WIDTH)
PVT = dict(type='PyramidVisionTransformerV2', embed_dims=8, num_layers=[1, 1, 1, 1])


@pytest.fixture(scope='module')
def resnet():
    """A ResNet-18 in torchvision's names, with a RoI layer."""
    torch.manual_seed(1)
    model = shake(narrow_resnet())
    model.fc_roi = torch.nn.Linear(64, 5)
    return model


@pytest.fixture(scope='module')
def file(resnet, tmp_path_factory):
    """Its backbone."""
    path = tmp_path_factory.mktemp('weights') / 'weights.pth'
    torch.save(bare(resnet), path)
    return path


def bare(model):
    return {key: value for key, value in model.state_dict().items() if not key.startswith('fc')}


def mmpretrain_names(model, before=''):
    heads = {f'{before}head.{key}': value for key, value in model.state_dict().items() if key.startswith('fc')}
    return {**{f'{before}backbone.{key}': value for key, value in bare(model).items()}, **heads}


LAYOUTS = {
    'mmengine checkpoint': lambda model: dict(meta=dict(epoch=3), state_dict=mmpretrain_names(model), optimizer={}),
    'saved under DDP': lambda model: dict(state_dict=mmpretrain_names(model, 'module.')),
    'compiled backbone': lambda model: {f'backbone._orig_mod.{key}': value for key, value in bare(model).items()},
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
    """The backbone of a model that gets it from a file, initialised the way mmengine's runner does it."""
    model = Model(backbone(**config), dict(type='StrictPretrained', checkpoint=str(file), **kwargs))
    model.init_weights()
    return model.backbone


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_layout_arrives_bit_for_bit(layout, resnet, tmp_path):
    torch.save(LAYOUTS[layout](resnet), tmp_path / 'layout.pth')
    expected = {k: v for k, v in bare(resnet).items() if layout != 'no BN counters' or not k.endswith('_tracked')}
    assert_same(initialised(R18, tmp_path / 'layout.pth'), expected)


def test_the_authors_release_and_safetensors_arrive(resnet, tmp_path):
    save_file(mmpretrain_names(resnet), tmp_path / 'weights.safetensors')
    for file in (release(resnet, tmp_path / 'release.pth'), tmp_path / 'weights.safetensors'):
        for scope in ('mmdet', 'mmseg', 'mmpretrain'):
            # mmpretrain's own init_weights would set the last BN of every block to zero.
            assert_same(initialised(dict(R18, scope=scope), file), bare(resnet))


def test_pvt_is_filled_although_mmengines_own_way_would_fail_silently(tmp_path):
    """The reason for all this; if the second half ever fails, mmdet has fixed its PVT."""
    pvt = shake(backbone(**PVT))
    for prefix in ('', 'module.backbone.', 'backbone.'):
        tensors = {prefix + key: value for key, value in pvt.state_dict().items()}
        torch.save(dict(state_dict=tensors), tmp_path / 'pvt.pth')
        assert_same(initialised(PVT, tmp_path / 'pvt.pth'), pvt.state_dict())
    init_cfg = Config(dict(c=dict(type='Pretrained', checkpoint=str(tmp_path / 'pvt.pth'), prefix='backbone.'))).c
    model = Model(backbone(**PVT, init_cfg=init_cfg))
    model.init_weights()
    found = model.backbone.state_dict()
    assert not any(torch.equal(found[key], value) for key, value in pvt.state_dict().items())


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


def test_half_precision_becomes_the_backbones_own_and_what_was_loaded_is_one_line_in_the_log(
    resnet, tmp_path, monkeypatch
):
    halves = {key: value.half() if value.is_floating_point() else value for key, value in bare(resnet).items()}
    torch.save(halves, tmp_path / 'half.pth')
    lines, model = [], Model(backbone(**R18))
    monkeypatch.setattr(MMLogger.get_current_instance(), 'log', lambda level, message: lines.append(message))
    loaded = StrictPretrained(str(tmp_path / 'half.pth'))(model)
    weight = model.backbone.conv1.weight
    assert weight.dtype == torch.float32 and torch.equal(weight, halves['conv1.weight'].float())
    assert loaded.sha256 == tensor_hash(model.backbone.state_dict())
    assert len(lines) == 1 and '\n' not in lines[0]
    for part in ('backbone <- ', 'half.pth', '120 tensors', '0.18 M values', f'sha256 {loaded.sha256[:16]}'):
        assert part in lines[0]


# ------------------------------------------------------------------------------------------------------- what is wrong
def tensors(depth=18):
    return narrow_resnet(depth).state_dict()


NOT_FINITE = {'layer2.0.bn1.running_mean': torch.full((16,), float('nan'))}
WRONG = {
    'another depth': (lambda: tensors(34), 'looks like ResNet(depth=34|backbone is ResNet(depth=18|layer1.2.conv1'),
    'bottlenecks': (lambda: tensors(50), 'looks like ResNet(depth=50|tensors of another shape'),
    'one tensor missing': (
        lambda: {k: v for k, v in tensors().items() if k != 'layer4.1.bn2.bias'},
        '1 of 120 tensors not in the file: layer4.1.bn2.bias',
    ),
    'one left over': (lambda: {**tensors(), 'layer4.1.x': torch.ones(2)}, 'not in backbone: layer4.1.x'),
    'another shape': (
        lambda: {**tensors(), 'layer3.1.conv2.weight': torch.ones(32, 3, 3, 3)},
        'layer3.1.conv2.weight is (32, 3, 3, 3) instead of (32, 32, 3, 3)',
    ),
    'another prefix': (
        lambda: {f'encoder.{k}': v for k, v in tensors().items()},
        "A network is under a prefix: give prefix='encoder.'",
    ),
    'no backbone': (lambda: dict(state_dict={'head.fc.weight': torch.ones(5, 4)}), 'no backbone in it|head.'),
    'no tensors': (lambda: dict(state_dict=dict(epoch=3)), 'no tensor among its entries (epoch)'),
    'a list': (lambda: [torch.ones(2)], 'it is a list, not a dictionary of tensors'),
    'not finite': (lambda: {**tensors(), **NOT_FINITE}, 'NaN, Inf or a negative variance in layer2.0.bn1.running_mean'),
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
    for part in [*expected.split('|'), 'wrong.pth']:
        assert part in str(caught.value)
    assert_same(module, before)


def test_a_file_without_read_permission(file, monkeypatch):
    def forbidden(*args, **kwargs):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr('builtins.open', forbidden)  # the superuser may read whatever its mode says
    with pytest.raises(UserFileError, match='Permission denied'):
        initialised(R18, file)


def test_without_a_file_the_way_to_give_one_is_named():
    for path, message in (
        ('  ', r'empty.*MMRM_BACKBONE.*model\.init_cfg\.checkpoint'),
        ('/nowhere.pth', r'nowhere\.pth do not exist.*MMRM_BACKBONE'),
    ):
        with pytest.raises(UserFileError, match=message):
            initialised(R18, path)
    with pytest.raises(UserTypeError, match='checkpoint=None'):
        StrictPretrained(None)(Model(backbone(**R18)))


def test_a_prefix_can_be_given_also_of_a_classifier(resnet, tmp_path):
    """As MoCo's is."""
    torch.save({f'module.encoder_q.{k}': v for k, v in resnet.state_dict().items()}, tmp_path / 'moco.pth')
    assert_same(initialised(R18, tmp_path / 'moco.pth', prefix='module.encoder_q.'), bare(resnet))
    with pytest.raises(UserFileError, match=r"no backbone in it under prefix='backbone\.'.*begin with module\."):
        initialised(R18, tmp_path / 'moco.pth', prefix='backbone.')


def test_a_backbone_that_ends_early_needs_to_say_so(resnet, file):
    early = dict(R18, num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2,))
    with pytest.raises(UserFileError, match=r'not in backbone: layer4\.0\.conv1\.weight'):
        initialised(early, file)
    found = initialised(early, file, unused=('layer4.',))
    assert torch.equal(found.layer3[0].conv1.weight, resnet.layer3[0].conv1.weight)


def test_arguments_are_checked():
    for name, value in dict(prefix='', unused='layer4.', module='encoder').items():
        with pytest.raises((UserValueError, UserTypeError), match=name):
            StrictPretrained('weights.pth', **{name: value})(Model(backbone(**R18)))


def test_two_sources_of_weights_are_an_error(resnet, file):
    """The habit of ``--cfg-options model.backbone.init_cfg.checkpoint=...`` must not end in other weights."""
    model = Model(backbone(**R18), dict(type='StrictPretrained', checkpoint=str(file)))
    model.backbone.init_cfg = dict(checkpoint='other.pth')
    with pytest.raises(UserValueError, match=r'two sources of weights.*other\.pth.*mmseg: model\.pretrained=None'):
        model.init_weights()


def test_other_initialisations_run_before_strict_pretrained(resnet, file):
    strict = dict(type='StrictPretrained', checkpoint=str(file))
    other = dict(type='Normal', layer='Conv2d', std=0.5)
    # In the backbone's own init_cfg it works where the class leaves initialisation to mmengine.
    for model in (Model(backbone(**R18, init_cfg=strict)), Model(backbone(**R18), [other, strict])):
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


# ------------------------------------------------------------------------------------------------------ a whole model
def test_a_deeper_network_is_not_taken_for_this_one(tmp_path):
    """All names and shapes of a ResNet-18 are in a ResNet-34."""
    model = classifier(R18, in_channels=64)
    expected = shake(classifier(R18, in_channels=64)).state_dict()
    state = dict(expected, **{'auxiliary_head.weight': torch.zeros(1), 'head.fc_roi.bias': torch.zeros(1)})
    torch.save(dict(state_dict={f'module.{key}': value for key, value in state.items()}), tmp_path / 'more.pth')
    load_weights(model, str(tmp_path / 'more.pth'), UNUSED_IN_TEST)  # a part that it lacks, and RM's layer
    assert_same(model, expected)
    with pytest.raises(UserFileError, match=r'2 of 124 tensors not in the model: auxiliary_head'):
        load_weights(model, str(tmp_path / 'more.pth'))
    state['backbone.layer1.2.conv1.weight'] = torch.zeros(8, 8, 3, 3)
    torch.save(dict(state_dict=state), tmp_path / 'deeper.pth')
    with pytest.raises(UserFileError, match=r'does not fit the config: .*not in the model: backbone\.layer1\.2\.conv1'):
        load_weights(model, str(tmp_path / 'deeper.pth'), UNUSED_IN_TEST)


@pytest.mark.parametrize(
    'content', [{1: torch.zeros(2)}, dict(state_dict=[1]), dict(state_dict={'weight': 'text', 1: 2})]
)
def test_a_file_whose_weights_are_not_named_tensors_is_refused(content, tmp_path):
    torch.save(content, tmp_path / 'odd.pth')
    with pytest.raises(UserFileError, match=r'odd\.pth does not fit the config: 2 of 2 tensors not in the file'):
        load_weights(torch.nn.Linear(2, 2), str(tmp_path / 'odd.pth'))
