#!/bin/sh
# The command line of this project, within its images.
exec python -m deploy.cli.main "$@"
