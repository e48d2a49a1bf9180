"""What services with an HTTP interface share: their OpenAPI documents, the page made of one, and how answers go out."""
