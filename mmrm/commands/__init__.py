"""The commands of mmrm, one file each."""
