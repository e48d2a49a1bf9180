"""Destinations of effects: a webhook receiver and a mail server, over real HTTP and SMTP, that fail on demand."""
