"""mmrm compare: the configs of the methods, the images that a seed draws, the runs and the table."""

import json
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer
from stand_in import use_stand_in
from tiny_run import BESIDE, write_run

from mmrm import cli
from mmrm.cli import compare, jobs, train
from mmrm.cli.check import check
from mmrm.engine.hooks.non_finite import REMEDIES
from mmrm.utils.errors import UserValueError

pytestmark = pytest.mark.usefixtures('environment')


def planned(config, root, *argv):
    """The configs that are written, by the name of the run."""
    args = compare.build_parser().parse_args([str(config), *map(str, argv)])
    return {run.name: Config.fromfile(run.config) for run in compare.plan(config, root, args)}


@pytest.mark.parametrize('more', ['', BESIDE])
def test_methods_differ_in_the_mix_and_the_loss_only(tmp_path, more):
    config = write_run(tmp_path, images=2, more=more)
    methods = ('none', 'mixup:alpha=1', 'cutmix:prob=0.5', 'rm', 'rm:alpha=0.3,omega=0.25')
    cfgs = planned(config, tmp_path / 'out', '--methods', *methods, '--seeds', 3, 4)
    assert list(cfgs) == [f'{name} seed {seed}' for seed in (3, 4) for name in methods]
    found = {}
    for name in methods:
        cfg = cfgs[f'{name} seed 3'].to_dict()
        place = cfg if more else cfg['model']
        found[name] = (place['data_preprocessor'].pop('batch_augments'), cfg['model']['head'].pop('omega'))
        cfgs[name] = cfg
    assert all(cfgs[name] == cfgs['none'] for name in methods)
    assert found == {
        'none': (None, 0),
        'mixup:alpha=1': (dict(augments=dict(type='Mixup', alpha=1.0)), 0),
        'cutmix:prob=0.5': (dict(augments=dict(type='CutMix', alpha=1.0), probs=0.5), 0),
        'rm': (dict(augments=dict(type='RecursiveMix', alpha=0.5)), 0.5),
        'rm:alpha=0.3,omega=0.25': (dict(augments=dict(type='RecursiveMix', alpha=0.3)), 0.25),
    }
    for name in ('rm_alpha=0.3_omega=0.25', 'mixup_alpha=1'):
        assert check(tmp_path / 'out' / name / 'seed3.py').problems == []


def test_a_stock_config_of_mmpretrain_becomes_one_of_each_method(tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(
        "_base_ = ['mmpretrain::resnet/resnet50_8xb256-rsb-a3-100e_in1k.py']\n"
        "custom_imports = dict(imports=['mmrm.models'])\n"
    )
    cfgs = planned(config, tmp_path / 'out', '--methods', 'none', 'mixup', 'rm', '--seeds', 0)
    for cfg in cfgs.values():
        assert (cfg.model.head.type, cfg.model.neck) == ('RMConsistencyHead', None)
        assert cfg.data_preprocessor.type == 'RMDataPreprocessor' and not cfg.model.train_cfg
    assert cfgs['none seed 0'].data_preprocessor.batch_augments is None
    mixup = cfgs['mixup seed 0'].data_preprocessor.batch_augments
    assert mixup == dict(augments=dict(type='Mixup', alpha=0.1))  # as in the config, but without its CutMix
    assert cfgs['rm seed 0'].model.head.omega == compare.OMEGA
    assert 'ResetHistoryHook' in [hook.type for hook in cfgs['rm seed 0'].custom_hooks]
    config.write_text(config.read_text() + "model = dict(head=dict(_delete_=True, type='ArcFaceClsHead'))\n")
    with pytest.raises(UserValueError, match=r'the head is ArcFaceClsHead.*docs/networks.md'):
        planned(config, tmp_path / 'other')


def test_mixing_is_off_in_the_epochs_that_a_method_names(tmp_path):
    config = write_run(tmp_path, images=2)
    cfgs = planned(config, tmp_path / 'out', '--methods', 'none', 'cutmix:last_epochs=1', 'rm', '--seeds', 0)
    hooks = {name: [hook for hook in cfg.custom_hooks if hook.type == 'MixScheduleHook'] for name, cfg in cfgs.items()}
    schedule = dict(type='MixScheduleHook', last_epochs=1)
    assert hooks == {'none seed 0': [], 'cutmix:last_epochs=1 seed 0': [schedule], 'rm seed 0': []}
    with pytest.raises(UserValueError, match='none takes lr, not last_epochs'):
        planned(config, tmp_path / 'other', '--methods', 'none:last_epochs=1')


def test_probability_and_schedule_of_the_config_are_kept_or_replaced(tmp_path):
    more = "model['data_preprocessor']['batch_augments']['probs'] = 0.5\n"
    more += "custom_hooks += [dict(type='MixScheduleHook', last_epochs=1)]\n"
    config = write_run(tmp_path, epochs=3, images=2, more=more)
    methods = ('none', 'rm', 'rm:prob=0.25', 'rm:last_epochs=2')
    found = {}
    for name, cfg in planned(config, tmp_path / 'out', '--methods', *methods, '--seeds', 0).items():
        mixing = cfg.model.data_preprocessor.batch_augments or {}
        drawn = (mixing.get('probs'), (mixing.get('augments') or {}).get('prob'))
        found[name] = (*drawn, [hook.last_epochs for hook in cfg.custom_hooks if hook.type == 'MixScheduleHook'])
    assert found == {
        'none seed 0': (None, None, []),  # there is nothing to switch off
        'rm seed 0': (0.5, None, [1]),
        'rm:prob=0.25 seed 0': (None, 0.25, [1]),  # not 0.25 of the config's 0.5
        'rm:last_epochs=2 seed 0': (0.5, None, [2]),
    }


def test_a_method_may_have_its_own_learning_rate(tmp_path):
    config = write_run(tmp_path, images=2)
    cfgs = planned(config, tmp_path / 'out', '--methods', 'none', 'none:lr=0.3', 'rm:lr=2e-3', 'rm:lr=.3', '--seeds', 0)
    rates = {name: cfg.optim_wrapper.optimizer.lr for name, cfg in cfgs.items()}
    own = Config.fromfile(config).optim_wrapper.optimizer.lr
    assert rates == {'none seed 0': own, 'none:lr=0.3 seed 0': 0.3, 'rm:lr=2e-3 seed 0': 0.002, 'rm:lr=.3 seed 0': 0.3}
    cfg = cfgs['none seed 0']
    del cfg.optim_wrapper['optimizer']
    with pytest.raises(UserValueError, match='rm:lr=1: lr needs optim_wrapper'):
        compare.set_method(cfg, compare.method('rm:lr=1'))


def test_every_method_of_a_seed_trains_on_the_same_images_drawn_by_it(tmp_path):
    config = write_run(tmp_path, images=12)
    cfgs = planned(config, tmp_path / 'out', '--methods', 'none', 'rm', '--seeds', 0, 1, '--images-per-class', 2)
    drawn = [tuple(cfg.train_dataloader.dataset.indices) for cfg in cfgs.values()]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    assert all(sum(index < 6 for index in each) == 2 and len(each) == 4 for each in drawn)
    with pytest.raises(UserValueError, match='--images-per-class 7: class 0 has 6 training images'):
        planned(config, tmp_path / 'more', '--images-per-class', 7)


def test_the_last_epoch_alone_is_tested_on_the_test_data(tmp_path):
    config = write_run(tmp_path, epochs=5, images=2, more='test_dataloader = dict(val_dataloader, batch_size=3)\n')
    (cfg,) = planned(config, tmp_path / 'out', '--methods', 'rm', '--seeds', 0, '--test-last').values()
    assert cfg.val_dataloader == cfg.test_dataloader and cfg.val_dataloader.batch_size == 3
    assert cfg.train_cfg.val_interval == 5 and cfg.default_hooks.checkpoint.save_best is None


@pytest.mark.parametrize(
    'methods, message',
    [
        (['smoothmix'], "'smoothmix': none, cutmix, mixup, rm are allowed"),
        (['rm:alpha'], 'with options as in rm:prob=0.5,omega=0.5'),
        (['mixup:omega=1'], 'mixup takes lr, alpha, prob, first_epochs, last_epochs, not omega'),
        (['none:prob=1'], 'none takes lr, not prob'),
        (['cutmix:prob=half'], "cutmix:prob=half: prob='half' must be a number from 0 to 1"),
        (['none:lr=0'], 'none:lr=0: lr=0 must be a number above 0'),
    ],
)
def test_a_wrong_method_or_option_is_named_with_those_allowed(error, tmp_path, methods, message):
    config = write_run(tmp_path, images=2)
    assert message in error(cli.main, 'compare', config, '--work-dir', tmp_path / 'out', '--methods', *methods)
    assert not (tmp_path / 'out').exists()


def test_a_failed_run_is_a_row_of_the_table_and_other_settings_are_refused(error, tmp_path, monkeypatch, capsys):
    config, out = write_run(tmp_path, epochs=3, images=2), tmp_path / 'out'
    use_stand_in(tmp_path, monkeypatch)
    out.mkdir()
    (out / 'fail-rm').write_text(f'2 the loss is nan. {REMEDIES}')
    argv = ['compare', str(config), '--work-dir', str(out), '--methods', 'none', 'rm', 'mixup', '--seeds', '0', '1']
    for _ in range(2):  # the second call repeats nothing
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        assert stop.value.code == 1
    printed = capsys.readouterr().out
    assert '| none | 2 | 30.00 ± 0.00 |  |' in printed and '| rm | 0, 2 failed or unfinished | - |  |' in printed
    assert '| mixup | 2 | 30.00 ± 0.00 | +0.00 (+0.00 to +0.00) |' in printed
    assert 'rm seed 1: failed: the loss is nan' in printed
    rows = [json.loads(line) for line in (out / 'results.jsonl').read_text().splitlines()]
    assert [row['value'] for row in rows] == [30.0, None, 30.0] * 2 and (out / 'table.md').is_file()
    assert (out / 'rm' / 'seed0' / 'starts').read_text().split() == ['0']
    before = (out / 'rm' / 'seed0.py').read_text()
    assert 'holds a run with other settings' in error(cli.main, *argv, '--cfg-options', 'model.head.topk=1')
    assert (out / 'rm' / 'seed0.py').read_text() == before


class InProcess:
    """A process of train.py, done here, where everything is imported."""

    def __init__(self, command, **kwargs):
        for kind in (MMLogger, MessageHub, Visualizer):  # two runs that start in one second would share them
            kind._instance_dict.clear()
        train.main(command[2:])
        self.returncode = 0

    def poll(self):
        return self.returncode


def test_methods_are_trained_and_compared(tmp_path, capsys, monkeypatch):
    config, out = write_run(tmp_path, epochs=1, images=4), tmp_path / 'out'
    monkeypatch.setattr(jobs, 'subprocess', SimpleNamespace(Popen=InProcess, DEVNULL=None, STDOUT=None))
    argv = ['compare', str(config), '--work-dir', str(out), '--methods', 'none', 'rm', '--seeds', '0']
    cli.main([*argv, '--dry-run'])
    assert capsys.readouterr().out.count('new: ') == 2 and not list(out.rglob('*.log'))
    cli.main([*argv, '--jobs', '2', '--device', 'cpu', '--test-last', '--images-per-class', '1'])
    printed = capsys.readouterr().out
    assert 'rm seed 0: finished at' in printed and '| rm | 1 |' in printed and (out / 'report.html').is_file()
    assert 'loss_consistency' in next((out / 'rm' / 'seed0').glob('*/*.log')).read_text()
    assert 'loss_consistency' not in next((out / 'none' / 'seed0').glob('*/*.log')).read_text()
