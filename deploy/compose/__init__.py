"""The deployment in containers: docker-compose.yml and what it mounts, made from what the local stack is made from."""
