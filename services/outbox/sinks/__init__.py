"""The ways out: webhook, e-mail, file; one protocol."""
