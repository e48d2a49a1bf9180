"""Programs that run in the containers of docker-compose.yml, and in `files` what it mounts."""
