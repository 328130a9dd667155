"""What every room uses: errors, paths, files, configs, logs."""
