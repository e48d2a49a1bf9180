"""An installation of the previous version, upgraded and rolled back on real brokers."""
