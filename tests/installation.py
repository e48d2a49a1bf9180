"""The id of the installation of tests without brokers."""

INSTALLATION = "3f2a9c0de1b84c7d8a6655f0c4e21b97"
