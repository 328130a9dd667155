"""Commands and Python on the pages: options exist, and a test runs each or its comment says what it needs."""

import argparse
import itertools
import pkgutil
import re
import runpy
import shlex
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import HOOKS

import mmrm

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(path for path in (*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')) if path.stem not in ('CHANGELOG', 'migration')),
    *ROOT.glob('projects/*/README.md'),
    ROOT / 'results' / 'README.md',
    ROOT / 'benchmarks' / 'README.md',
]
SHELL = re.compile(r'^```(?:bash|shell)\n(.*?)^```', re.M | re.S)
PYTHON = re.compile(r'^```python\n(.*?)^```', re.M | re.S)
# What a loop of a page puts in $models.
MODELS = '--model RM configs/rm/resnet18-w16_1xb64_cifar10-250.py weights.pth'
SCRIPTS = {'tools/dist_train.sh': 'train', 'tools/dist_test.sh': 'test'}
NEEDS = re.compile(r'# needs (?:a GPU|\d* ?GPUs|Slurm|the network|openmim|CIFAR-100?|COCO)\b')
SETUP = re.compile(r'\s*(?:\w+=("[^"]*"|\S*|\$\(.*)|\w+=\$\w+; .*|models=.*|for .*|echo .*|done.*)')
# What runs a command or a block of Python: the first pattern that it contains counts. test_your_images.py runs other
# commands as they are, test_python_of_a_page_runs other Python.
RUN_BY = {
    'tools/setup_env.sh|pytest tests': 'tests/run.sh',
    'tests/run.sh': '.github/workflows/tests.yml',
    'demo.sh|demo/run.py': 'tests/projects/test_demo.py::test_the_quick_demo_end_to_end_and_what_is_done_stays',
    'mmrm compare': 'tests/cli/test_compare.py::test_methods_are_trained_and_compared',
    'mixed_batches.py': 'tests/analysis/test_tools.py::test_mixed_batches_and_cut_or_resize',
    'photos': 'tests/test_your_images.py::test_a_step_of_the_page',
    'data/imagenet': 'tests/test_readme.py::test_archives_of_imagenet_unpack_as_data_md_says',
    'get_cifar10.py': 'tests/datasets/test_cifar.py::test_package_becomes_a_data_set_once',
    'check.py|mmrm check': 'tests/cli/test_check.py::test_check_ends_with_ready',
    'cifar10/run.py': 'tests/projects/test_cifar10_study.py::test_command_runs_missing_results_and_writes_each',
    'finetune/(prepare|run|measure)': 'tests/projects/test_finetune.py::'
    'test_a_folder_of_pets_is_prepared_and_a_run_is_trained_and_measured_once',
    'finetune/table.py': 'tests/projects/test_finetune_measures.py::test_the_table_is_printed',
    'transfer/run.py': 'tests/projects/test_transfer.py::test_a_fine_tuning_waits_for_its_own_backbone_only',
    '--save|--results': 'tests/report/test_results.py::test_a_table_of_results_is_that_of_the_runs',
    'classifier authors': 'tests/weights/test_export.py::test_the_authors_networks_have_the_same_logits_in_mmpretrain',
    'when_rm_helps.py': 'tests/analysis/test_tools.py::test_when_rm_helps_draws_every_row_of_the_page',
    'label_audit.py': 'tests/analysis/test_label_audit.py::test_every_method_runs_on_a_folder_of_masks',
    'effective_classes.py': 'tests/analysis/test_tools.py::test_effective_classes',
    'efficiency.py': 'tests/analysis/test_tools.py::test_efficiency',
    'sweep_curves.py': 'tests/analysis/test_tools.py::test_sweep_curves',
    'curve.py work': 'tests/analysis/test_authors_curve.py::test_the_script_prints_its_line_and_draws_the_curves',
    'batch_norm.py work': 'tests/projects/test_finetune_measures.py::'
    'test_statistics_of_batch_norm_are_those_of_plain_or_mixed_images',
    'soak.py': 'tests/test_benchmarks.py::test_killed_runs_end_like_the_uninterrupted_one',
    'input_speed.py': 'tests/test_benchmarks.py::test_input_speed_compares_the_pipelines',
    'fuzz_mixing.py': 'tests/test_benchmarks.py::test_random_settings_agree_with_the_slow_reference',
    'fuzz_readers.py': 'tests/test_benchmarks.py::test_changed_files_are_read_or_refused',
    'benchmarks/': 'tests/test_benchmarks.py::test_benchmark_runs',
    'fully_shard': 'tests/test_loops.py::test_static_graphs_and_sharded_weights_train_as_ddp',
    'compile = True': 'tests/engine/test_compiled.py::test_compile_in_a_config_trains_as_without_it',
    'torch.compile': 'tests/test_wrapper.py::test_compiled_wrapper_is_one_graph_for_all_boxes',
    'build_encoder': 'tests/models/test_stylecutmix.py::test_distances_compare_the_mean_styles_of_classes',
    'onnxruntime': 'tests/cli/test_export_command.py::'
    'test_a_program_has_the_same_logits_for_any_number_of_images_and_says_what_goes_in',
    'transformers.Auto': 'tests/cli/test_export_command.py::'
    'test_transformers_loads_the_folder_offline_and_has_the_same_logits',
    'Inferencer': 'tests/test_inferencers.py::test_an_inferencer_predicts_with_the_weights_of_the_checkpoint',
    'get_model': 'tests/weights/test_registry.py::test_get_model_from_a_config_and_a_run',
}


def lines(page):
    """The commands of a page: the lines of its blocks of shell, and the scripts in backticks."""
    text = page.read_text(encoding='utf-8')
    for block in SHELL.findall(text):
        for name, value in [*re.findall(r'^(\w+)="([^"$]*)"$', block, re.M), ('models', MODELS)]:
            block = block.replace(f'${name}', value)
        yield from (line for line in block.replace('\\\n', ' ').splitlines() if not SETUP.fullmatch(line))
    yield from re.findall(r'`((?:python (?:tools|benchmarks|projects)/|mmrm \w+ )[^`|]*)`', SHELL.sub('', text))


def runner(text):
    """What runs a command or a block, or None."""
    return next((test for pattern, test in RUN_BY.items() if re.search(pattern, text)), None)


def as_they_are(page):
    """The commands of a page that need nothing and are in no other test."""
    return [line for line in lines(page) if not NEEDS.search(line) and not runner(line)]


AS_THEY_ARE = {page: found for page in PAGES if (found := as_they_are(page))}


def commands(page):
    """(program, arguments) of what argparse reads: ``mmrm COMMAND`` or a script of the repository."""
    for line in lines(page):
        line = re.sub(r'\[[^\]]*\]|\s#.*|\.\.\.|["&].*', '', line)
        words = shlex.split(re.sub(r"'[^']*'", 'TEXT', line))
        while words and re.fullmatch(r'\w+=\S*', words[0]):
            words = words[1:]
        if not words or '$(' in line or len(words) < 3:
            continue
        if words[0] in SCRIPTS:
            place = 2 if words[0].endswith('train.sh') else 3
            yield 'mmrm', [SCRIPTS[words[0]], *words[1:place], '--gpus', words[place], *words[place + 1 :]]
        elif words[0] == 'mmrm' or words[:3] == ['python', '-m', 'mmrm']:
            yield 'mmrm', words[words.index('mmrm') + 1 :]
        elif words[0] == 'python' and words[1].endswith('.py') and '/' in words[1]:
            yield words[1], words[2:]


CASES = sorted({(program, ' '.join(words)) for page in PAGES for program, words in commands(page)})


class Parsed(BaseException):
    """The command line was read."""


@pytest.mark.parametrize('program, words', CASES)
def test_command_parses(program, words, monkeypatch, capsys):
    def parse(self, *args, **kwargs):
        original(self, *args, **kwargs)
        raise Parsed

    original = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', parse)
    monkeypatch.setattr(sys, 'argv', [program, *words.split()])
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.chdir(ROOT)
    try:
        with pytest.raises(Parsed):
            if program == 'mmrm':
                runpy.run_module('mmrm', run_name='__main__')
            else:
                runpy.run_path(str(ROOT / program), run_name='__main__')
    except SystemExit as error:  # argparse's own
        assert error.code == 0, capsys.readouterr().err


def test_every_command_is_run_or_says_what_it_needs():
    assert not [line for found in AS_THEY_ARE.values() for line in found if line.split()[0] not in ('mmrm', 'python')]
    for test in RUN_BY.values():
        file, _, name = test.partition('::')
        assert name in re.findall(r'^def (\w+)', (ROOT / file).read_text(encoding='utf-8'), re.M) or not name
    texts = [text for page in PAGES for text in (*lines(page), *PYTHON.findall(page.read_text(encoding='utf-8')))]
    assert {runner(text) for text in texts} >= {*RUN_BY.values()}


def test_measured_rows_are_those_of_the_studies():
    """Computed from the files of results."""
    from mmrm.report.intervals import difference
    from projects.cifar10 import run, table
    from projects.finetune import run as finetune
    from projects.finetune import table as pets_table
    from projects.transfer import table as transfer

    page = (ROOT / 'docs' / 'when_rm_helps.md').read_text(encoding='utf-8')
    rows = re.findall(r'\| ([-+][^|]*) \| ([-+][^|]*) \| \[measured\]', page)
    cifar10 = table.by_method(run.read_results(ROOT / 'projects' / 'cifar10' / 'experiment.jsonl'))
    results, tuned = transfer.shipped_results(), finetune.read_results()

    def pets(cell, rival, measure='top1'):
        return difference(
            *(pets_table.by_seed(tuned, cell, each, measure) for each in ('rm', rival.replace('baseline', 'none')))
        )

    pairs = [
        lambda rival: difference(cifar10['rm'], cifar10[rival], table.last),
        lambda rival: difference(*(transfer.pretrainings(results, each) for each in ('rm', rival)), transfer._value),
        lambda rival: difference(*(transfer.alone(results, each)[16] for each in ('rm', rival)), transfer._value),
        lambda rival: transfer.compare(results, 'pspnet-camvid', 'frozen', 'rm', rival),
        lambda rival: transfer.compare(results, 'pspnet-camvid', 'tuned', 'rm', rival),
        lambda rival: pets('50x45', rival),
        lambda rival: pets('50x15', rival),
        lambda rival: pets('10x15', rival),
        lambda rival: pets('10x45', rival),
        lambda rival: pets('50x45', rival, 'shrunk_0.5'),
    ]
    wanted = [tuple(table.difference_text(pair(rival)) for rival in transfer.RIVALS) for pair in pairs]
    assert rows == wanted
    more = [
        transfer.compare(results, task, mode, 'rm', 'baseline')
        for task in transfer.TASKS
        for mode in transfer.MODES
        if task != 'pspnet-camvid'
    ]
    low, high, (above,) = min(more).mean, max(more).mean, [each for each in more if each.low > 0]
    assert len(more) == 6 and above == transfer.compare(results, 'atss-scenes', 'frozen', 'rm', 'baseline')
    assert f'RM minus no mixing {low:+.1f} to {high:+.1f}, one interval above 0 (composed scenes' in page
    mixup = difference(cifar10['mixup'], cifar10['rm'], table.last)
    assert f'it led RM by {mixup.mean:.2f} ({mixup.low:.2f} to {mixup.high:.2f}; three seeds)' in page
    gains = [pets_table.compare(tuned, '50x45', method) for method in ('mixup', 'cutmix', 'rm')]
    texts = ', '.join(f'{name} {table.difference_text(gain)}' for name, gain in zip(('Mixup', 'CutMix', 'RM'), gains))
    assert f'98.3 % intervals (corrected for three comparisons): {texts}.' in page
    later, readme = {}, (ROOT / 'README.md').read_text(encoding='utf-8')
    for measure in ('top1', 'shrunk_0.75', 'shrunk_0.5', 'shrunk_0.375', 'ece'):
        found = pets_table.by_seed(tuned, '50x45', 'rm', measure, later=True)
        later[measure] = difference(found, pets_table.by_seed(tuned, '50x45', 'none', measure))
    top1, *scales, _ = later.values()
    text = f"at no mixing's RM has {table.difference_text(top1)[:-1]}; 95 %, six seeds, run later)"
    assert text in page and top1.n == 6
    assert "at no mixing's learning rate " + ', '.join(f'{each.mean:+.2f}' for each in scales) + ', CutMix' in page
    assert f"{statistics.fmean(found.values()):.1f} at no mixing's learning rate (the" in page
    text = f"at no mixing's learning rate, tried later, {top1.mean:.1f} ({top1.low:.1f} to {top1.high:+.1f}), "
    assert f'{text}{scales[1].mean:+.1f} on images shrunk to half.' in readme
    *three, eight = (pets(cell, 'none') for cell in pets_table.CELLS)
    widths = sorted((each.high - each.low) / 2 for each in three)
    text = f'± {(eight.high - eight.low) / 2:.1f} points here, three ± {widths[0]:.1f} to {widths[-1]:.1f} (RM'
    assert text in page
    shrunk = [pets('50x45', 'none', f'shrunk_{scale}') for scale in (0.75, 0.5, 0.375)]
    assert 'RM minus no mixing ' + ', '.join(f'{each.mean:+.2f}' for each in shrunk) in page
    cutmix = [pets_table.compare(tuned, '50x45', 'cutmix', f'shrunk_{scale}') for scale in (0.75, 0.5, 0.375)]
    assert 'CutMix ' + ', '.join(f'{each.mean:+.2f}' for each in cutmix) in page

    def others(methods, *measures):
        cells = ('10x15', '10x45', '50x15')
        return [pets_table.compare(tuned, *each) for each in itertools.product(cells, methods, measures)]

    def extremes(found):
        return f'{min(found).mean:+.1f} to {max(found).mean:+.1f}'

    def above(found):
        return f'{sum(each.low > 0 for each in found)} of {len(found)}'

    ours, cut = (others([method], 'shrunk_0.75', 'shrunk_0.5', 'shrunk_0.375') for method in ('rm', 'cutmix'))
    text = f'In the other cells RM has {extremes(ours)}, {above(ours)} intervals above 0; CutMix {extremes(cut)}, '
    assert f'{text}{above(cut)}.' in page
    small, ours = table.difference_text(pets('50x45', 'none', 'small')), others(['rm'], 'small')
    lost = sum(each.high < 0 for each in ours)
    assert f'do not gain: RM {small}, in the other cells {extremes(ours)}, {lost} of 3 intervals below 0.' in page
    both = others(['rm', 'cutmix'], 'ece')
    around = sum(each.low <= 0 <= each.high for each in both)
    assert f'in the other cells {around} of {len(both)} intervals include 0)' in page
    corrected = gains[-1]
    top1 = f'{corrected.mean:.1f} points of top-1 ({corrected.low:.1f} to {corrected.high:+.1f}, corrected'
    assert f'RM: {top1} for three comparisons);' in readme
    errors, losses = (
        [
            statistics.fmean(pets_table.by_seed(tuned, '50x45', method, measure).values())
            for method in ('none', 'cutmix', 'rm')
        ]
        for measure in ('ece', 'nll')
    )
    assert '{:.1f} % without mixing, {:.1f} with CutMix, {:.1f} with RM, '.format(*errors) in page
    worse = above(others(['rm', 'cutmix'], 'nll'))
    text = 'Cross entropy: {:.2f}, {:.2f}, {:.2f}; in the other cells'.format(*losses)
    assert f'{text} {worse} intervals are above 0 (worse).' in page
    errors = {name: f'{100 - statistics.fmean(map(table.last, runs.values())):.2f}' for name, runs in cifar10.items()}
    (row,) = re.findall(r'\| \*measured\* CIFAR-10, 250 [^|]* \|(.*)\|', (ROOT / 'README.md').read_text())
    assert re.findall(r'[\d.]+', row) == [errors[name] for name in ('baseline', 'mixup', 'cutmix', 'rm')]


def test_published_rows_are_those_of_the_paper():
    from mmrm.report.published import TABLES

    page = (ROOT / 'docs' / 'when_rm_helps.md').read_text(encoding='utf-8')
    rows = re.findall(r'\| [^|]* \| \+([\d.]+) \| \+([\d.]+) \| published', page)
    wanted = []
    for name, labels, sign in (
        ('cifar10', [], -1),
        ('cifar100', ['ResNet-18'], -1),
        ('imagenet', ['ResNet-50'], -1),
        ('imagenet', ['PVTv2-B1'], -1),
        ('coco-dense', ['ATSS', 'ResNet-50'], 1),
        ('ade20k', ['UperNet', 'ResNet-50'], 1),
    ):
        value = {row.labels[-1]: row.published[0] for row in TABLES[name].rows if list(row.labels[:-1]) == labels}
        wanted.append([sign * (value['+ RM'] - value[other]) for other in ('Baseline', '+ CutMix')])
    assert [[float(cell) for cell in row] for row in rows] == [pytest.approx(row) for row in wanted]


def python_names(page):
    """Dotted names of mmrm on a page; of the migration tables the last column."""
    text = page.read_text(encoding='utf-8')
    if page.stem == 'migration':
        text = '\n'.join(line.split(' | ')[-1] for line in text.splitlines())
    yield from re.findall(r'(?<![\w./:-])mmrm(?:\.(?!json)[a-zA-Z_]\w*)+', re.sub(r'\[[^\]]*\]\([^)]*\)', '', text))


@pytest.mark.parametrize('page', [*PAGES, ROOT / 'docs' / 'migration.md'], ids=lambda path: path.name)
def test_names_of_mmrm_exist(page):
    def exists(name):
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            return False
        return True

    assert not [name for name in python_names(page) if not exists(name)]


@pytest.fixture
def names():
    """What the pages leave to the reader: a network, a batch, a training loop."""
    net = pytest.importorskip('timm').create_model('resnet18', num_classes=100)
    rm, images, labels = mmrm.RecursiveMix(num_classes=100), torch.rand(2, 3, 32, 32), torch.tensor([0, 2])
    _, scores, mix = rm.mix(images, labels)
    loop = dict(
        epoch=0, epochs=1, loader=[(images, labels)], criterion=torch.nn.CrossEntropyLoss(), device='cpu', rank=0
    )
    mixed = dict(scores=scores, mix=mix, features=torch.rand(2, 512, 1, 1), index=[1, 0], lam=0.5, fc=net.fc)
    mixed.update(feature_map=mixed['features'], consistency=mmrm.Consistency(512, 100))
    return dict(torch=torch, np=np, F=F, net=net, images=images, labels=labels, **loop, **mixed)


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.name)
def test_python_of_a_page_runs(page, names, tmp_path, monkeypatch):
    """A config is loaded and its hooks are built, other blocks are executed one after another."""
    monkeypatch.chdir(tmp_path)
    for block in PYTHON.findall(page.read_text(encoding='utf-8')):
        if runner(block):
            continue
        if re.search(r'dict\(\s*type=', block):
            base = 'atss_r50_fpn_1x_coco.py' if page.stem == 'downstream' else 'resnet50_8xb64_in1k.py'
            text = block if '_base_ = ' in block else f"_base_ = ['{ROOT}/configs/rm/{base}']\n{block}"
            (tmp_path / 'mine.py').write_text(text)
            config = Config.fromfile(tmp_path / 'mine.py')
            for hook in config.get('custom_hooks', []):
                HOOKS.build(hook)
        else:
            exec(block.replace(', ...)', ')'), names)
