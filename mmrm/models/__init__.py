"""RecursiveMix in mmpretrain's registries: thin adapters around :mod:`mmrm.core`."""
