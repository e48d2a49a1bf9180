"""transform: prices accepted payments."""
