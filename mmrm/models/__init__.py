"""RecursiveMix in OpenMMLab: ``custom_imports = dict(imports=['mmrm.models'])`` in a config.

Importing this package first repairs what the installed packages need to work together (:mod:`mmrm.compat`), then
registers all that a config can name: models, data sets, hooks, metrics, schedulers, weights. :mod:`mmrm.engine` and
:mod:`mmrm.weights` begin with the same import, so that everything is loaded in the same order whichever comes first.
"""

from importlib.util import find_spec

if all(map(find_spec, ('mmengine', 'mmcv', 'mmpretrain'))):  # without, the functions of mmrm.models.regularisers work
    from .. import compat

    compat.apply()  # before mmpretrain.models is imported: on mmcv-lite mmdet cannot be imported after it

    from . import backbones, batch_augments, data_preprocessor, heads, necks, regularisers  # noqa: F401

    # isort: split
    import mmrm.datasets
    import mmrm.engine.hooks
    import mmrm.engine.metrics
    import mmrm.engine.optim_wrapper
    import mmrm.engine.schedulers
    import mmrm.weights.strict  # noqa: F401
