"""The real client and the real runtime against a cluster that is simulated below the client, in virtual time."""
