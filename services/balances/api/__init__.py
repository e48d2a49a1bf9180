"""What the view answers over HTTP."""
